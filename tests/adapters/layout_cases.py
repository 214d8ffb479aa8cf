"""Which runs show that every adapter trains alike on every layout: one launch for each number of processes."""

from __future__ import annotations

from typing import Any

from catalogue import components, further_options, in_tiny_llama, small_options

from mt_core.nn import sharing_of

LAYOUTS: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "pipeline": {"stage": "auto", "pipeline": 2, "micro": 2},
    "sequence": {"stage": 1, "sequence": 2},
}
"""Layout → the case of the worker that has it."""
WHOLE, AGAIN, BITS = "zero0", "resumed", "nf4"
TRAINED_ONLY = {"checkpoint": {"trainable_only": True}}

Cases = dict[str, dict[str, Any]]


def case(name: str, layout: str, how: str = "run", **more: Any) -> dict[str, Any]:
    """One run of an adapter; ``resume`` saves after the second of four steps and goes on in a fresh engine."""
    return {**LAYOUTS[layout], "adapter": {"name": name, **small_options(name)}, "do": "try_case", "how": how, **more}


def declared_layouts(name: str) -> list[str]:
    """The layouts that two processes on CPUs can try."""
    return [layout for layout in LAYOUTS if layout in components()[name].layouts]


def over_bits(name: str) -> list[str]:
    """The layouts on which it is tried over a quantized base."""
    fits = components()[name].on_quantized
    return [layout for layout in declared_layouts(name) if fits and layout in ("zero1", "zero3", "sequence")]


def sample_layouts(name: str, names: list[str]) -> list[str]:
    """CI's share: a pipeline where base weights change or layers share parameters, of the others one of ZeRO 1 to 3 in turn."""
    shares = any(sharing_of(parameter) for parameter in in_tiny_llama(name)[1].parameters())
    wanted = {"pipeline"} if shares or components()[name].rewrites_base else {f"zero{1 + names.index(name) % 3}"}
    found = [layout for layout in declared_layouts(name) if layout in wanted]
    return found or declared_layouts(name)[-1:]


def one_process(names: list[str], *, full: bool) -> Cases:
    """Adapter/what → case."""
    cases: Cases = {}
    for name in names:
        first = declared_layouts(name)[0]
        cases[f"{name}/{WHOLE}"] = case(name, first)
        cases[f"{name}/{AGAIN}"] = case(name, first, "resume", **TRAINED_ONLY)
        if full:
            cases[f"{name}/recompute"] = case(name, first, recompute=True)
            cases |= {f"{name}/one {layout}": case(name, layout) for layout in declared_layouts(name)[1:]}
            if components()[name].on_quantized:
                cases[f"{name}/{BITS}"] = case(name, first, quantizer=BITS)
    return cases


def two_processes(names: list[str], *, full: bool) -> Cases:
    """Adapter/layout → case; all of them, with a resumed run each, where ``full``."""
    cases: Cases = {}
    for name in names:
        for layout in declared_layouts(name) if full else sample_layouts(name, names):
            cases[f"{name}/{layout}"] = case(name, layout)
            if full:
                cases[f"{name}/{layout} {AGAIN}"] = case(name, layout, "resume", **TRAINED_ONLY)
        for layout in over_bits(name) if full else []:
            cases[f"{name}/{BITS} {layout}"] = case(name, layout, quantizer=BITS)
            cases[f"{name}/{BITS} {layout} {AGAIN}"] = case(name, layout, "resume", quantizer=BITS, **TRAINED_ONLY)
    return cases


def further(processes: int, names: list[str]) -> Cases:
    """Adapter, label/what → case: of ``FURTHER`` what CI tries of every adapter."""
    cases: Cases = {}
    for title, (name, options) in further_options().items():
        own = {"adapter": {"name": name, **options}}
        first = declared_layouts(name)[0]
        if processes == 1:
            cases[f"{title}/{WHOLE}"] = {**case(name, first), **own}
            cases[f"{title}/{AGAIN}"] = {**case(name, first, "resume", **TRAINED_ONLY), **own}
        else:
            cases |= {f"{title}/{layout}": {**case(name, layout), **own} for layout in sample_layouts(name, names)}
    return cases
