"""The verdict of ``--dry-run --gpu`` and the layouts of ``--plan``, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SPENT_ON = ("compute", "memory", "network", "bubble")
MUCH_SHORTER = 0.8
"""Share of the longest row below which a row on average is one that times are much too long for."""


def describe_fit(fit: Mapping[str, Any]) -> str:
    """Describe whether a run fits, what makes it fit, and how long its rows may be."""
    need = f"{_gib(fit['needed'])} of {_gib(fit['gpu_memory'])} GiB a rank on {fit['gpu']}, {fit['kept_free']:.0%} kept free"
    lines = [("fits" if fit["fits"] else "too large", need)]
    if fit["host_needed"]:
        lines.append(("host", _host(fit)))
    lines += [
        ("fits with" if not number else "or", _fix(each, fit["per_node"])) for number, each in enumerate(fit["fixes"])
    ]
    if not fit["fits"] and not fit["fixes"]:
        lines.append(("fits on", _nodes(fit["nodes"])))
    if fit["longest_row"] is not None:
        lines.append(("longest row", _longest(fit)))
    if not fit["activations_counted"]:
        lines.append(("", "without activations, which cannot be counted for this model"))
    return "\n".join(f"{title:<12}{text}" for title, text in lines)


def _host(fit: Mapping[str, Any]) -> str:
    node = fit["host_needed"] * fit["per_node"]
    guess = "" if fit["host_memory_given"] else " (as many are; --host-memory GIB says it)"
    return f"{_gib(node)} of {_gib(fit['host_memory'])} GiB a node{guess}"


def _fix(fix: Mapping[str, Any], per_node: int) -> str:
    host = f", host {_gib(fix['host_needed'] * per_node)} GiB a node" if fix["host_needed"] else ""
    return f"{format_changes(fix['changes'])} ({_gib(fix['needed'])} GiB{host})"


def _nodes(nodes: int | None) -> str:
    keys = "--parallel.zero-stage 3 --train.micro-batch-size 1 --train.activation-checkpointing true"
    return f"{nodes:,} nodes with {keys}" if nodes else "no number of these GPUs, as far as tried; take a smaller model"


def _longest(fit: Mapping[str, Any]) -> str:
    limit = fit["model_limit"]
    beyond = f", of {limit:,} that the model knows" if limit is not None and limit < fit["longest_row"] else ""
    return f"{fit['longest_row']:,} tokens with these keys{beyond}"


def format_changes(changes: Mapping[str, Any]) -> str:
    """Format keys and values as options of a command line."""
    words = (f"--{key.replace('_', '-')} {str(value).lower()}" for key, value in changes.items())
    return " ".join(words)


def describe_layouts(found: Mapping[str, Any]) -> str:
    """Describe the fastest layouts in a table, each with the keys that make it, and where its times come from."""
    fastest: Sequence[Mapping[str, Any]] = found["fastest"]
    if not fastest and not found["accepted"]:
        return f"none of {found['tried']:,} layouts is one that the check accepts for this run"
    if not fastest:
        return f"no layout of {found['tried']:,} fits: {found['too_large']:,} that the check accepts are too large"
    head = [
        "fastest layouts",
        "s a step",
        "tokens/s",
        "a GPU",
        "MFU",
        "GiB",
        "days",
        *(f"{each} %" for each in SPENT_ON),
    ]
    lines = [_row(head)]
    for number, each in enumerate(fastest, start=1):
        shares = [f"{100 * each['shares'][name]:.0f}" for name in SPENT_ON]
        cells = [
            f"{number}, bound by {each['bound']}",
            f"{each['step_seconds']:,.3g}",
            f"{each['tokens_per_second']:,.0f}",
            f"{each['tokens_per_second_per_gpu']:,.0f}",
            f"{each['mfu']:.0%}",
            _gib(each["needed"]),
            f"{each['days']:,.3g}",
        ]
        lines += [_row([*cells, *shares]), f"    {format_changes(_told(each['changes']))}"]
    if not found["fitted"]:
        lines.append(
            f"no published run of this GPU is among those that times follow from; taken as one of {found['fitted_like']}"
        )
    if found["matmul"] == "fp8":
        lines.append("counted for products in bf16, and MFU of their peak: no time of train.matmul fp8 is known")
    if found["collects_answers"]:
        lines.append("counted for the longest answers, and without the time in which they are written and scored")
    rows = found["row_tokens"]
    if rows["mean"] < MUCH_SHORTER * rows["counted"]:
        lines.append(
            f"counted for rows padded to the longest of all, {rows['counted']:,} tokens; they have {rows['mean']:,.0f} on average, so that"
        )
        lines.append(
            "steps take less time, and tokens/s are places of which padding is a part; --data.batching packing fills rows"
        )
    if found["small"]:
        lines.append(
            "smaller than any model that times follow from: starting kernels is not counted, and will take longer"
        )
    lines.append(f"of {found['tried']:,} layouts tried; times follow from published runs of other frameworks; ours")
    lines.append("on one H200 were up to 15 % slower. They tell layouts a fifth apart, and promise no throughput")
    return "\n".join(lines)


def _told(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out ranks of 1 and a recompute that is off, which are the defaults."""
    return {
        key: value
        for key, value in changes.items()
        if value is not False and (value != 1 or "parallel" not in key or "zero" in key)
    }


def _row(cells: Sequence[str]) -> str:
    return "".join([f"{cells[0]:<24}", *(f"{cell:>11}" for cell in cells[1:])])


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f}"
