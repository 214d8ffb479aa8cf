"""``mt-train --dry-run``: the plan of a run, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mt_core.config.secrets import redact_values
from mt_core.tracking.logs import notice
from mt_train.assemble.parts import Parts
from mt_train.assemble.run import RunOptions
from mt_train.cli.fit import describe_fit, describe_layouts
from mt_train.engine.group_sizes import GroupSize
from mt_train.planning.hardware import Hardware
from mt_train.tracking.logs import is_first, show

if TYPE_CHECKING:
    from mt_train.planning.dry_run import PaperRun

BARS = "▁▂▃▄▅▆▇█"
PARTS = ("weights", "gradients", "optimizer", "buffers", "activations")


def show_plan(
    parts: Parts,
    options: RunOptions,
    *,
    world: int,
    hardware: Hardware | None = None,
    layouts: bool = False,
    as_json: bool = False,
    plot: str | None = None,
) -> int:
    """Check everything and print what would run, whether it fits ``hardware`` and, where asked for, the fastest ``layouts`` there; ``plot``
    names a PNG of its rates. Raises ``MtError`` with every fault."""
    from mt_train.planning.rates import draw_rates, picture_path

    picture = picture_path(plot) if plot is not None else None
    from mt_train.planning.dry_run import dry_run  # torch loads from here on

    paper = dry_run(parts, options, world=world, device=None if hardware is None else "cuda")
    about = paper.about()
    if hardware is not None:
        about |= add_hardware(paper, hardware, about["steps"], layouts=layouts)
    if not is_first():
        return 0
    if picture is not None:
        draw_rates(parts, about, picture)
    if as_json:
        print(json.dumps(redact_values(about), indent=1))  # in ASCII: exact on any console
        return 0
    for text in about["plan"]["notices"]:
        notice(f"notice: {text}")
    show(describe(about))
    for text in about["warnings"]:
        notice(f"warning: {text}")
    return 0


def add_hardware(paper: PaperRun, hardware: Hardware, steps: int, *, layouts: bool) -> dict[str, Any]:
    """Return what the plan has beside, on named machines."""
    from mt_train.planning.report import report_fit, report_layouts

    added = {"fit": report_fit(paper, hardware)}
    return added | ({"layouts": report_layouts(paper, hardware, steps)} if layouts else {})


def describe(about: Mapping[str, Any]) -> str:
    """Describe the plan in a few aligned lines and a table of memory."""
    from mt_train.assemble.reach import describe_adapter
    from mt_train.assemble.report import describe_media_part

    batch, parameters, plan = about["batch"], about["parameters"], about["plan"]
    ranks = "1 rank" if about["ranks"] == 1 else f"{about['ranks']:,} ranks"
    lines = [
        ("model", about["model"]),
        ("parameters", f"{parameters['total']:,}, of which {parameters['trained']:,} are trained"),
        *(("media" if not number else "", describe_media_part(part)) for number, part in enumerate(about["media"])),
        *([("adapter", describe_adapter(about["adapter"]))] if about["adapter"] else []),
        ("training", about["training"]),
        *(("", text) for text in about["sources"]),
        ("held out", about["held_out"]),
        ("example", about["example"]),
        ("ranks", f"{ranks} on {'GPUs' if plan['device'] == 'cuda' else 'CPUs'}"),
        ("layout", about["layout"]),
        ("batch", f"{batch['rows']:,} rows of {batch['row_tokens']:,} tokens = {batch['tokens']:,} tokens a step"),
        *([("experts", _experts(about["experts"]))] if about["experts"] else []),
        ("steps", f"{about['steps']:,} optimizer steps, {_epochs(about['epochs'])}"),
        *([("saves", about["saves"])] if about["saves"] else []),
        ("rate", _rates(about["rates"])),
        *(("groups" if not number else "", str(GroupSize(**group))) for number, group in enumerate(about["groups"])),
        *([("trained", ", ".join(about["trained"]["names"]))] if about["trained"]["chosen"] else []),
        *((_title(number, about["stages"], "layers"), _stage(stage)) for number, stage in enumerate(about["stages"])),
    ]
    text = "\n".join(f"{title:<11}{' '.join(text.split())}" for title, text in lines)
    parts = [text, _memory(about["stages"])]
    parts += [describe_fit(about["fit"])] if "fit" in about else []
    parts += [describe_layouts(about["layouts"])] if "layouts" in about else []
    return "\n\n".join([*parts, "checked; nothing was started"])


def _experts(experts: Mapping[str, int]) -> str:
    """Describe how many of a layer's experts a rank has, and what tokens may cost it."""
    return (
        f"{experts['here']:,} of {experts['all']:,} on each rank: {experts['rows']:,} rows a layer where their load is even, at worst"
        f" {experts['most_rows']:,}, {experts['most_bytes'] / 2**20:,.1f} MiB wherever a layer keeps them"
    )


def _epochs(count: float | None) -> str:
    return "of a stream, whose length nobody knows" if count is None else f"{count:,.1f} epochs"


def _rates(rates: Sequence[Mapping[str, Any]]) -> str:
    """A small curve of the learning rate over the run, and its values at some steps."""
    most = max(each["lr"] for each in rates) or 1.0
    curve = "".join(BARS[round(each["lr"] / most * (len(BARS) - 1))] for each in rates)
    places = sorted({round((len(rates) - 1) * part / 4) for part in range(5)})
    shown = ", ".join(f"{rates[place]['lr']:.3g} at {rates[place]['step']:,}" for place in places)
    return f"{curve} {shown}"


def _title(number: int, stages: Sequence[Any], alone: str) -> str:
    return f"stage {number}" if len(stages) > 1 else alone


def _stage(stage: Mapping[str, Any]) -> str:
    first, last = stage["ranks"]
    ranks = f"rank {first}" if first == last else f"ranks {first}–{last}"
    return f"{stage['layers']}: {stage['parameters']:,} parameters, on {ranks}"


def _memory(stages: Sequence[Mapping[str, Any]]) -> str:
    """A row a stage, and one more for what is in the host's memory."""
    rows = []
    for number, stage in enumerate(stages):
        title = _title(number, stages, "each rank")
        rows.append((title, _sizes(stage["memory"], "device")))
        if any(_sizes(stage["memory"], "host")):
            rows.append((f"  host, {title}", _sizes(stage["memory"], "host")))
    unit, name = (2**30, "GiB") if max(sum(filter(None, sizes)) for _, sizes in rows) >= 2**30 else (2**20, "MiB")
    head = ["memory a rank, " + name, *PARTS[:-1], "activations*", "total"]
    table = [head, *([title, *_cells(sizes, unit)] for title, sizes in rows)]
    lines = ["".join([f"{row[0]:<20}", *(f"{cell:>13}" for cell in row[1:])]) for row in table]
    return "\n".join([*lines, _note(stages)])


def _sizes(memory: Mapping[str, Any], place: str) -> list[int | None]:
    return [None if memory[part] is None else memory[part][place] for part in PARTS]


def _cells(sizes: Sequence[int | None], unit: int) -> list[str]:
    shown = ["?" if size is None else f"{size / unit:,.2f}" for size in sizes]
    return [*shown, f"{sum(filter(None, sizes)) / unit:,.2f}"]


def _note(stages: Sequence[Mapping[str, Any]]) -> str:
    if any(stage["memory"]["activations"] is None for stage in stages):
        return "* cannot be counted for this model, and not in the total"
    return "* estimate for full rows; Python, its libraries and the rows come on top"
