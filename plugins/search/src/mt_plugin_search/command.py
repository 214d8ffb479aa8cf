"""``mt-search``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core import MtError, UsageError
from mt_train.command import (
    CORE_KINDS,
    CommandLine,
    Kinds,
    describe_version,
    expand,
    installed_kinds,
    merge,
    notice,
    parse,
    parse_flags,
    read_config,
    read_layered,
    run_command,
    write_completion,
)

from .folder import BEST, Folder
from .process import STOPPED
from .request import Search, Settings, prepare
from .searching import SearchResult, begin, go_on, has_tried_all, new_folder, with_options
from .space import size

HELP = """usage: mt-search [--recipe NAME] [--config FILE] --search.KEY VALUES … [--trials N] [--key value …]

Trains with different values of some keys, and says which were best. Every option of mt-train is one here too, for all
trials alike (mt-train --model NAME --help shows them):
  mt-search --model llama --train.steps 200 --search.optimizer.lr log:1e-4..1e-2 --search.train.micro-batch-size 4,8,16

What is searched:
  --search.KEY log:1e-5..1e-3  numbers between the two, as many per decade
  --search.KEY 0.0..0.2        numbers between the two, evenly; whole ones where both ends are whole: 2..8
  --search.KEY 0.0..0.2/0.05   in steps
  --search.KEY 4,8,16          one of these values: numbers, words, true, false, none
  --space FILE                 the same as YAML or JSON; the command line wins

How:
  --metric FIGURE:min|max    a figure of metrics.jsonl, at the last evaluation (default eval_loss:min)
  --trials N                 trials in all (default 20; with grid all combinations)
  --sampler tpe|random|grid  how values are chosen (default tpe)
  --seed N                   of the sampler (default 0); train.seed is that of every run
  --prune median|none        end trials that are worse than half of those before (default median)
  --prune-after N            complete trials before any ends early (default 5)
  --prune-from N             optimizer steps before a trial may end early (default 0)

The command itself:
  --recipe NAME              a whole run's config under a name (mt-plugins recipes)
  --config FILE              config of the run, YAML or JSON, over the recipe
  --output FOLDER            where the search goes (default searches/MODEL-NNN)
  --resume SEARCH|auto       go on with a search; auto: in --output, if one was begun there, else begin
  --nproc-per-node N|auto    processes of each trial
  --dry-run                  check everything, say what would be searched, and start nothing
  --json                     print what was found as JSON
  --completion bash|zsh|fish print what completes this in a shell
  --debug                    show tracebacks
  --version, --help"""

_WHOLE = re.compile(r"-?[0-9]{1,18}")

SWITCHES = ("dry_run", "json", "debug", "version", "help")
VALUES = ("recipe", "config", "space", "output", "resume", "completion", *Settings.model_fields)
KEPT = ("trials", "nproc_per_node")
"""Options that may be given for a search that goes on."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = [_spell(word) for word in (sys.argv[1:] if argv is None else argv)]
    return run_command(lambda: _main(words), debug="--debug" in words)


def _spell(word: str) -> str:
    """``--search.optimizer`` names optimizers, and its options may be searched beside it."""
    key, equals, value = word.partition("=")
    slot = key.removeprefix("--search.").replace("-", "_")
    if key.startswith("--search.") and slot in CORE_KINDS.slots:
        return f"{key}.name{equals}{value}"
    return "--help" if word == "-h" else word


def _main(words: list[str]) -> int:
    flags = parse_flags(words, switches=SWITCHES, values=VALUES)
    if "help" in flags or "version" in flags:
        print(HELP if "help" in flags else describe_version("mt-plugin-search"))
        return 0
    if "completion" in flags:
        print(write_completion("mt-search", flags["completion"], switches=SWITCHES, values=VALUES))
        return 0
    kinds = installed_kinds()
    line = parse(words, switches=SWITCHES, values=VALUES, kinds=kinds)
    if "WORLD_SIZE" in os.environ:
        raise UsageError(
            "mt-search starts the processes of each trial itself: leave out the launcher, and give --nproc-per-node N"
        )
    folder, wanted, goes_on = _read_request(line, kinds)
    if "dry_run" in line.flags:
        for note in wanted.notices():
            notice(note)
        print(describe(wanted))
        return 0
    found = go_on(folder, wanted) if goes_on else begin(folder, wanted)
    _show(found, wanted, as_json="json" in line.flags)
    if found.stopped:
        return STOPPED
    if found.best is None:
        raise MtError(f"no trial was complete; {found.output}/logs has what they said")
    return 0


def _read_request(line: CommandLine, kinds: Kinds) -> tuple[Folder, Search, bool]:
    """Return where, what, and whether it goes on."""
    wish = line.flags.get("resume")
    if wish is not None and wish != "auto":
        given = [*(key for key in line.flags if key not in (*KEPT, *SWITCHES, "resume")), *line.raw]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise UsageError(
                f"--resume goes on with the search as it is: leave out {option}; --trials and --nproc-per-node may change"
            )
        folder = Folder(Path(expand(wish)))
        return folder, with_options(folder.read_search(), _options(line.flags)), True
    wanted = _read_search(line, kinds)
    if wish == "auto" and "output" not in line.flags:
        raise UsageError("--resume auto looks for a search in --output FOLDER: give one")
    folder = new_folder(line.flags.get("output", "auto"), wanted)
    return folder, wanted, wish == "auto" and not folder.is_new()


def _read_search(line: CommandLine, kinds: Kinds) -> Search:
    given = dict(line.raw)
    searched = given.pop("search", {})
    if not isinstance(searched, Mapping):
        raise UsageError(f"--search needs a key, as in --search.optimizer.lr log:1e-5..1e-3, got {searched!r}")
    files = [Path(expand(line.flags["config"]))] if "config" in line.flags else []
    stored = read_layered(line.flags.get("recipe"), files)
    space = read_config(expand(line.flags["space"])) if "space" in line.flags else {}
    return prepare(merge(stored, given, kinds), _over(space, searched), _options(line.flags))


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the command line win over those of the file, however deep and however they are written."""
    return dict(_flatten(lower)) | dict(_flatten(upper))


def _flatten(raw: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in raw.items():
        key = f"{prefix}{name}".replace("-", "_")
        found += _flatten(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
    return found


def _options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that are settings, numbers as numbers."""
    texts = {key: text for key, text in flags.items() if key in Settings.model_fields}
    return {key: int(text) if _WHOLE.fullmatch(text) else text for key, text in texts.items()}


def describe(wanted: Search) -> str:
    """Describe what would be searched."""
    count = size(wanted.space)
    settings = wanted.settings
    lines = [
        *((key.removesuffix(".name").replace("_", "-"), str(dimension)) for key, dimension in wanted.space.items()),
        ("combinations", "endless" if count is None else f"{count:,}"),
        ("trials", f"{wanted.trials}, {settings.sampler}, seed {settings.seed}"),
        ("best", f"{settings.figure}, {'least' if settings.minimize else 'most'}"),
        (
            "ended early",
            "no"
            if settings.prune == "none"
            else f"worse than the median, after {settings.prune_after} complete trials",
        ),
    ]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join([*(f"{name:<{width}}{text}" for name, text in lines), "", "checked; nothing was started"])


def _show(found: SearchResult, wanted: Search, *, as_json: bool) -> None:
    from .table import as_json as json_of
    from .table import show_found  # rich loads from here on

    if as_json:
        print(json_of(found))
    else:
        show_found(found)
    if found.stopped:
        notice(f"stopped by {found.stopped}; go on with: mt-search --resume {found.output}")
    elif found.best is not None and not as_json:
        print(
            f"best: trial {found.best.number}, {found.metric} {found.best.value:.4f}, in {found.output / found.best.run}"
        )
        print("next:")
        print(f"  mt-train --config {found.output / BEST} --output runs/best")
        if not has_tried_all(wanted, found.trials):
            print(f"  mt-search --resume {found.output} --trials {len(found.trials) * 2}")


if __name__ == "__main__":
    sys.exit(main())
