"""Weights that differ between ranks which should have the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mt_plugin_callbacks.corruption import describe_difference, hash_weights, odd_ones


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_any_one_flipped_bit_changes_the_hash(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(3, 5).mul(40).to(dtype), torch.randn(7).mul(40).to(dtype)]
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[weights[0].element_size()]
    before = hash_weights(weights).item()
    assert hash_weights([each.clone() for each in weights]).item() == before
    for tensor in weights:
        bits = tensor.view(-1).view(whole)
        for place in range(len(bits)):
            for bit in range(8 * tensor.element_size()):
                kept = bits[place].clone()
                bits[place] ^= torch.ones((), dtype=whole) << bit
                assert hash_weights(weights).item() != before
                bits[place] = kept


def test_weights_of_two_parameters_that_changed_places_have_another_hash() -> None:
    first, second = torch.arange(4.0), torch.ones(4)
    assert hash_weights([first, second]).item() != hash_weights([second, first]).item()


def test_the_odd_rank_is_the_one_without_a_majority() -> None:
    assert odd_ones([7, 7, 9, 7]) == [2]
    assert odd_ones([7, 9]) == [0, 1]
    assert odd_ones([1, 1, 2, 2]) == [0, 1, 2, 3]
    assert "rank 2 on c has other weights than the other 3 ranks" in describe_difference([2], list("abcd"), 40)


def test_one_flipped_bit_ends_the_run_at_the_next_look_and_quiet_runs_go_on(
    machines: Callable[..., Path], needs: Callable[[str], None]
) -> None:
    """At every ZeRO stage, rank 1 of 3 has one bit flipped after step 4; looks are after every second step."""
    needs("mt-plugin-quantizers")
    check = [{"name": "corruption-check", "every_steps": 2}]
    cases = {
        f"flip{stage}": {"stage": stage, "steps": 6, "save": 2, "flip": [1, 4], "callbacks": check}
        for stage in range(4)
    }
    quantized = {"stored": True, "more": {"quantizer": "nf4", "adapter": {"name": "lora", "rank": 2}}}
    cases |= {f"stored{stage}": {**cases[f"flip{stage}"], **quantized} for stage in (1, 3)}
    cases["quiet"] = {"stage": 0, "steps": 30, "callbacks": [{"name": "corruption-check", "every_steps": 1}]}
    cases["warn"] = {"stage": 0, "steps": 6, "flip": [1, 1], "callbacks": [{**check[0], "action": "warn"}]}
    folder = machines(3, cases)
    for name in (name for name in cases if name.startswith(("flip", "stored"))):
        for rank in range(3):
            told = (folder / f"{name}-{rank}.txt").read_text()
            assert told.startswith("65 after step 4 rank 1 on "), told
            assert "has other weights than the other 2 ranks. They were the same last after step 2" in told
            assert f"go on with: mt-train --resume {folder / name}/checkpoints/step-00000002" in told
    assert (folder / "quiet-0.txt").read_text() == (folder / "warn-0.txt").read_text() == ""
    events = (folder / "warn/events.jsonl").read_text()
    assert events.count("has other weights than the other 2 ranks") == 1
