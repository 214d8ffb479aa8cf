"""Steps whose ranks have very different numbers of trained tokens, whose tokens weigh little, and whose head has no gradient."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_core.nn.loss import chunk_tokens

SHAPE = {"dim": 16, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "ffn_dim": 16, "max_seq_len": 2048}
CAPPED = {"name": "gemma", "variant": "2-tiny", "window": 64, **SHAPE}
PLAIN = {"name": "llama", **SHAPE}
MIXTURE = {"name": "lora-moe", "rank": 2, "balance": 1.0}
LONG, SHORT = chunk_tokens(torch.device("cpu")) + 376, 6
"""Trained tokens of the rows: more than one run of the head, and far fewer."""

HEADS: dict[str, dict[str, Any]] = {
    "soft-capped": {"family": CAPPED, "recompute": True},
    "plain": {"family": PLAIN},
    "frozen": {"family": CAPPED, "adapter": {"name": "lora", "rank": 2}},
    "cut": {"family": CAPPED, "sequence": 2},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "pipeline": {"stage": "auto", "pipeline": 2},
    "sequence": {"stage": 1, "sequence": 2},
}
ACCURATE = {"name": "sft", "token_accuracy": True}
WEIGHTS = {"whole": 1.0, "light": 0.01, "heavy": 30.0}
Launch = Callable[..., dict[str, Any]]


def rows_of(path: Path, lengths: list[int], weight: float | None = None) -> str:
    """A file of rows with so many trained bytes, each of this weight."""
    lines = []
    for number, length in enumerate(lengths):
        answer = {"role": "assistant", "content": f"{number % 7} c d"[0] * length}
        answer |= {} if weight is None else {"weight": weight}
        lines.append(json.dumps({"messages": [{"role": "user", "content": "ab"}, answer]}))
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two processes. With one row a micro-batch, 13 rows to train on leave a rank without one, and 5 held-out rows do too."""
    folder = tmp_path_factory.mktemp("heads")
    uneven = rows_of(folder / "uneven.jsonl", [LONG if number % 2 else SHORT for number in range(18)])
    alike = {name: rows_of(folder / f"{name}.jsonl", [3 + n % 9 for n in range(21)], w) for name, w in WEIGHTS.items()}
    turns = {"data": {"template": "plain"}}
    far = {**turns, "objective": ACCURATE, "length": 2048, "micro": 1, "eval_every": 3, "steps": 3, "rows": uneven}
    near = {**turns, "objective": ACCURATE, "family": PLAIN, "eval_every": 2, "steps": 2}
    cases = {
        f"{head}, zero{stage}": {**far, **case, "stage": stage} for head, case in HEADS.items() for stage in (2, 3)
    }
    cases |= {f"light, {name}": {**near, **case, "rows": alike["light"]} for name, case in LAYOUTS.items()}
    cases |= {name: {**near, "stage": 0, "rows": rows} for name, rows in alike.items()}
    cases |= {
        f"mixture, {name}": {**near, "stage": 1, "adapter": MIXTURE, "rows": rows} for name, rows in alike.items()
    }
    for name, layout in LAYOUTS.items():
        unused = {**turns, "family": PLAIN, "headless": True, "rows": alike["whole"], "micro": 4, **layout}
        cases |= {f"headless, {name}": unused, f"headless, {name}, resumed": {**unused, "do": "resume"}}
    onward = {**turns, "family": PLAIN, "headless": True, "rows": alike["whole"], "do": "resume"}
    cases |= {
        f"headless, {old} to {new}": {**onward, "stage": old, "then": {"stage": new}}
        for old, new in ((0, 1), (0, 3), (3, 0))
    }
    return launch("train/engine/gathering_worker.py", 2, folder, cases)


def is_close(first: list[float], second: list[float], tolerance: float) -> bool:
    return len(first) == len(second) and all(
        abs(a - b) <= tolerance * abs(a) for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("head", HEADS)
def test_zero_3_equals_zero_2_however_many_trained_tokens_each_rank_has(two: dict[str, Any], head: str) -> None:
    """Bit for bit: losses, norms, weights, and what evaluations say, the share of tokens that are right included.

    LoRA's layers are one function where no hook gathers weights, so that under a frozen head it is 1e-5, of sums in another order.
    """
    whole, divided = two[f"{head}, zero2"], two[f"{head}, zero3"]
    assert (len(whole["losses"]), len(whole["eval"])) == (3, 2)
    if head == "frozen":
        assert all(is_close(whole[key], divided[key], 1e-5) for key in ("losses", "norms", "eval"))
        return
    for key in ("losses", "norms", "eval", "weights"):
        assert whole[key] == divided[key], key


@pytest.mark.parametrize("name", [*(f"light, {layout}" for layout in LAYOUTS), "heavy"])
def test_weights_that_are_all_the_same_change_neither_losses_nor_norms_nor_figures(
    two: dict[str, Any], name: str
) -> None:
    """1e-5 relative, on every layout: a sum of weights below 1 divides like any other. Tokens are those that have a label."""
    whole, weighed = two["whole"], two[name]
    for key in ("losses", "norms", "eval"):
        assert is_close(whole[key], weighed[key], 1e-5), (key, whole[key], weighed[key])
    assert whole["tokens"] == weighed["tokens"]
    assert whole["tokens"] > 50


@pytest.mark.parametrize("name", ["light", "heavy"])
def test_the_balance_loss_of_experts_is_as_strong_whatever_tokens_weigh(two: dict[str, Any], name: str) -> None:
    whole, weighed = two["mixture, whole"], two[f"mixture, {name}"]
    assert is_close(whole["norms"], weighed["norms"], 1e-5), (whole["norms"], weighed["norms"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_that_the_objective_does_not_use_is_saved_and_goes_on_bit_for_bit(
    two: dict[str, Any], layout: str
) -> None:
    whole, parts = two[f"headless, {layout}"], two[f"headless, {layout}, resumed"]
    for key in ("losses", "norms", "weights", "state"):
        assert whole[key] == parts[key], key


@pytest.mark.parametrize("move", ["0 to 1", "0 to 3", "3 to 0"])
def test_it_goes_on_in_another_layout(two: dict[str, Any], move: str) -> None:
    """1e-6 relative: the losses do not depend on a head that is not used."""
    assert is_close(two["headless, zero0"]["losses"], two[f"headless, {move}"]["losses"], 1e-6)
