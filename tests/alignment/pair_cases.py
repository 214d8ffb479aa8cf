"""Which runs show that pairs train alike on every layout: one launch for each number of processes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

Cases = dict[str, dict[str, Any]]

LAYOUTS: Cases = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "pipeline": {"stage": "auto", "pipeline": 2, "micro": 2},
    **{f"sequence{stage}": {"stage": stage, "sequence": 2} for stage in (1, 3)},
}
"""Layout → the case of the worker that has it, on two processes."""

OBJECTIVES: dict[str, dict[str, Any]] = {
    "everything": {
        "name": "dpo",
        "loss": [{"name": "sigmoid", "weight": 0.8}, {"name": "ipo", "weight": 0.2}],
        "sft": 0.5,
        "sft_mean": "tokens",
        "ld_alpha": 0.5,
        "wpo": True,
    },
    "sft": {"name": "dpo", "sft": 0.5, "sft_mean": "tokens"},
    "tails": {"name": "dpo", "ld_alpha": 0.5},
    "wpo": {"name": "dpo", "wpo": True},
    "simpo": {"name": "simpo"},
    "orpo": {"name": "orpo"},
    "orpo all": {"name": "orpo", "nll_on": "all", "sft_mean": "tokens"},
    "everything all": {"name": "dpo", "nll_on": "all", "sft": 0.5, "ld_alpha": 0.5, "wpo": True},
    "kto": {"name": "kto", "beta": 0.3, "undesirable_weight": 1.2},
    "aot": {"name": "aot"},
    "aot unpaired": {"name": "aot", "rows": "unpaired", "ld_alpha": 0.5, "sft": 0.1},
}
LORA: dict[str, Any] = {"rank": 4, "alpha": 32}
ADAPTERS: Cases = {
    **{name: {"adapter": {"name": name, **LORA}} for name in ("lora", "dora", "pissa")},
    "qlora": {"adapter": {"name": "lora", **LORA}, "quantizer": "nf4"},
    "mixture": {"adapter": {"name": "lora-moe", "rank": 2, "balance": 0.3}},
}
COUPLED = ("everything", "kto", "aot")
"""Shown with micro-batches of each size, and packed: a pair by itself, and objectives whose step belongs together."""
TWO_TERMS: dict[str, Any] = {"two_terms": "pairs"}
PACKED: dict[str, Any] = {"data": {"batching": "packing"}}
STREAM: dict[str, Any] = {"dataset": "stream"}
IN_ORDER: dict[str, Any] = {"data": {"shuffle": False, "eval": None}, "eval_every": None}
"""Rows of a file and of a stream come in the same order."""
FEW: dict[str, Any] = {"data": {"read_rows": 8, "eval": None}, "eval_every": None}
"""All rows are those of one step, however they are packed."""

WHOLE, FEW_PACKED = "one", {**FEW, "data": {**FEW["data"], **PACKED["data"]}}
KINDS: Cases = {
    **{name: {"objective": each} for name, each in OBJECTIVES.items()},
    **{name: {"objective": "dpo", **each} for name, each in ADAPTERS.items()},
    "terms": {"objective": "simpo", **TWO_TERMS},
    "stream": {"objective": "dpo", **ADAPTERS["lora"], **STREAM},
    **{f"stream {name}": {"objective": OBJECTIVES["tails"], **ADAPTERS[name], **STREAM} for name in ("dora", "qlora")},
    **{f"stream {name}": {"objective": OBJECTIVES[name], **ADAPTERS["lora"], **STREAM} for name in ("kto", "aot")},
    "reward": {"objective": {"name": "reward", "centring": 0.01}},
    "reward lora": {"objective": "reward", "adapter": {"name": "lora", **LORA}},
    "reward tied": {"objective": "reward", "model": {"tie_embeddings": True}},
    "reward tied lora": {"objective": "reward", "model": {"tie_embeddings": True}, "adapter": {"name": "lora", **LORA}},
}
RESUMED: Cases = {
    "zero1": {"stage": 1, "micro": 2},
    "zero3": {"stage": 3, "objective": OBJECTIVES["aot"]},
    "pipeline": {**LAYOUTS["pipeline"], "objective": OBJECTIVES["kto"]},
    "sequence": {**LAYOUTS["sequence3"], "adapter": ADAPTERS["pissa"]["adapter"]},
}
OF_STREAMS: Cases = {name: LAYOUTS[name] for name in ("zero3", "pipeline", "sequence1")}
"""Layouts of streams that are stopped and resumed."""
MOST_LAYOUTS = ("zero2", "zero3/packed", "pipeline", "pipeline/micro 1", "sequence1", "sequence3/packed")
SAMPLED = {
    "everything": ("zero0", "zero1/micro 1", *MOST_LAYOUTS),
    "sft": ("zero2/packed",),
    "tails": ("sequence1/packed",),
    "wpo": ("pipeline/packed",),
    "simpo": ("zero0/packed",),
    "orpo": ("zero3/micro 2",),
    "orpo all": ("pipeline/micro 1", "sequence3"),
    "everything all": ("zero3/micro 2",),
    "kto": ("zero0/packed", "zero3", "pipeline", "sequence1/packed"),
    "aot": ("zero2/micro 1", "zero3/packed", "pipeline/micro 1", "sequence1"),
    "aot unpaired": ("zero1/packed",),
    "lora": ("zero3",),
    "dora": ("sequence3",),
    "pissa": ("zero2",),
    "qlora": ("zero3",),
    "mixture": ("sequence1",),
    "stream": ("zero3/packed", "pipeline/micro 1", "sequence1"),
    "stream dora": ("pipeline",),
    "stream qlora": ("sequence1",),
    "stream kto": ("zero1",),
    "stream aot": ("zero3",),
    "terms": ("zero1/micro 1", "pipeline"),
    "reward": ("zero3/micro 1", "pipeline", "sequence3/packed"),
    "reward lora": ("pipeline",),
    "reward tied": ("zero3",),
}
"""CI's share."""


def case(kind: str, how: str) -> dict[str, Any]:
    """One run: ``LAYOUT``, and behind it ``packed`` or ``micro SIZE``."""
    layout, _, more = how.partition("/")
    named = {"stage": 0, **LAYOUTS.get(layout, {}), **KINDS[kind], "do": "trained"}
    if more == "packed":
        return {**named, **PACKED}
    return {**named, **({"micro": int(more.removeprefix("micro "))} if more else {})}


def hows(*, full: bool) -> list[tuple[str, str]]:
    """Every kind and how it is run on two processes."""
    if not full:
        return [(kind, how) for kind, some in SAMPLED.items() for how in some]
    ends = ("", "/packed", "/micro 1", "/micro 2")
    return [
        (kind, f"{layout}{end}")
        for kind in KINDS
        for layout in LAYOUTS
        if not (kind.endswith("qlora") and layout == "pipeline")  # four bits are in no pipeline
        for end in ends
    ]


def whole_of(how: str) -> str:
    """The run of one process with the same rows in a step."""
    return f"{WHOLE}/packed" if how.endswith("packed") else WHOLE


def one_process(*, full: bool) -> Cases:
    """Those that others are compared with, and what one process tries by itself."""
    compared = {(kind, whole_of(how)) for kind, how in hows(full=full)} | {(kind, WHOLE) for kind in KINDS}
    both = (WHOLE, f"{WHOLE}/packed")
    cases = {f"{kind}/{how}": case(kind, how) for kind in KINDS for how in both if (kind, how) in compared}
    cases |= {f"{kind}/one/micro {size}": case(kind, f"one/micro {size}") for kind in COUPLED for size in (1, 2, 4)}
    for kind in (*COUPLED, "terms"):
        cases |= {
            f"{kind}/few{end}": {**cases[f"{kind}/one"], **rows} for end, rows in (("", FEW), (" packed", FEW_PACKED))
        }
    for name in ("everything/one", "qlora/one", "pissa/one", "terms/few"):
        cases[name]["plain"] = True
    cases["dropped"] = {**case("sft", WHOLE), "model": {"dropout": 0.3}, "steps": 1, "plain": True}
    step = {"steps": 1, "clip": None, "do": "trained", "stage": 0}
    for balance in (0.0, 0.3):
        adapter = {"adapter": {**ADAPTERS["mixture"]["adapter"], "balance": balance}}
        cases[f"balance {balance} of pairs"] = {**step, "objective": "dpo", **adapter}
        cases[f"balance {balance} of tokens"] = {**step, "objective": "dpo", "two_terms": "tokens", **adapter}
    cases |= {f"read {kind}": case(kind, WHOLE) | {"do": "read"} for kind in ("reward lora", "reward tied lora")}
    cases |= {f"in order/{name}": {**case(name, WHOLE), **IN_ORDER} for name in ("lora", "stream")}
    resumed = {"stage": 0, "do": "resumed", "objective": "dpo", "micro": 2}
    return cases | {"resumed/one": resumed, "resumed/stream": {**KINDS["stream"], **resumed}}


def two_processes(*, full: bool) -> Cases:
    """The same on two processes."""
    cases = {f"{kind}/{how}": case(kind, how) for kind, how in hows(full=full)}
    cases |= {f"read {kind}": case(kind, "zero3") | {"do": "read"} for kind in ("reward lora", "reward tied lora")}
    cases["terms/few packed"] = {**KINDS["terms"], **FEW_PACKED, "stage": 2, "do": "trained"}
    resumed = {"do": "resumed", "objective": OBJECTIVES["tails"]}
    cases |= {
        f"resumed stream/{name}": {**KINDS["stream"], **each, "do": "resumed"} for name, each in OF_STREAMS.items()
    }
    return cases | {f"resumed/{name}": {**resumed, **each} for name, each in RESUMED.items()}


def write_pairs(path: Path) -> Path:
    """24 pairs, of which some have one side far longer than the other."""
    draw = random.Random(5)
    words = "sea wide blue old man says no ten red fox tree rest"

    def text(fewest: int, most: int) -> str:
        return " ".join(draw.choice(words.split()) for _ in range(draw.randint(fewest, most)))

    rows = [{"prompt": text(1, 4), "chosen": text(1, 6), "rejected": text(1, 6)} for _ in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
