"""LoRA-GA against peft's on the same gradients, and against the paper's formula in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from peft.tuners.lora import LoraGAConfig as PeftLoraGAConfig
from peft.tuners.lora.layer import Linear as PeftLora

sys.path.insert(0, str(Path(__file__).parent))

from given_probe import Chain, GivenProbe, put, with_gradients
from peft_layers import assert_close, check_start_and_merge, compare, move

from mt_core import UsageError
from mt_core.nn import StoredLinear
from mt_plugin_adapters.variants.lora_ga import COMPONENT
from mt_plugin_adapters.variants.lora_ga.config import LoraGaConfig

SMALL: dict = {"rank": 4, "alpha": 8.0}
LAYOUTS_WITHIN: float = 2e-5  # singular vectors enlarge the rounding of the gradients that they are of
WIDTHS = (24, 16, 20, 12)


def chain(**options: object) -> tuple[Chain, dict[str, torch.Tensor], GivenProbe]:
    return with_gradients(COMPONENT.build(LoraGaConfig(**{**SMALL, **options})), *WIDTHS)


def test_first_values_are_the_papers() -> None:
    """A = c V[:r]ᵀ and B = c U[r:2r] with c = outputs^¼ / √γ, W_frozen + s·BA = W. The largest number of each v is positive."""
    model, gradients, _ = chain(gamma=9.0)
    for block, base, gradient in zip(model.blocks, Chain(*WIDTHS).blocks, gradients.values(), strict=True):
        u, _, v = torch.linalg.svd(gradient.double(), full_matrices=False)
        signs = v.gather(1, v.abs().argmax(1, keepdim=True)).sign()
        c = len(gradient) ** 0.25 / 3.0
        assert_close(block.lora_A.double(), c * (signs * v)[:4])
        assert_close(block.lora_B.double(), c * (u * signs.T)[:, 4:8])
        assert_close(block.weight + 2.0 * block.lora_B @ block.lora_A, base.weight)


def test_values_output_gradients_and_merged_weight_equal_pefts() -> None:
    """Signs of singular vectors are free, and peft's come from a start at random; products with themselves have none."""
    model, gradients, _ = chain(form="peft")
    for block, base, gradient in zip(model.blocks, Chain(*WIDTHS).blocks, gradients.values(), strict=True):
        base._peft_loraga_grad = gradient.clone()
        config = LoraConfig(r=4, lora_alpha=8, init_lora_weights="lora_ga", lora_ga_config=PeftLoraGAConfig())
        theirs = PeftLora(base, "default", config=config, r=4, lora_alpha=8)
        a, b = theirs.lora_A["default"].weight, theirs.lora_B["default"].weight
        assert_close(block.lora_A.T @ block.lora_A, a.T @ a)
        assert_close(block.lora_B @ block.lora_B.T, b @ b.T)
        with torch.no_grad():  # theirs rewrote its base with signs of its own
            base.weight.copy_(block.weight)
        compare(move(block), theirs, {"lora_A": a, "lora_B": b})


@pytest.mark.parametrize("form", ["paper", "peft"])
def test_it_begins_as_the_base_and_merges_and_unmerges(form: str) -> None:
    model, _, _ = chain(form=form)
    for block, base in zip(model.blocks, Chain(*WIDTHS).blocks, strict=True):
        check_start_and_merge(block, base, first=1e-6)


def test_in_half_precision_only_the_frozen_rest_is_rounded() -> None:
    adapter, model = COMPONENT.build(LoraGaConfig(**SMALL)), Chain(*WIDTHS)
    gradients = with_gradients(COMPONENT.build(LoraGaConfig(**SMALL)), *WIDTHS)[1]
    adapter.prepare(model, GivenProbe(gradients=gradients))
    model.bfloat16()
    before = [block.weight.float() for block in model.blocks]
    put(adapter, model)
    for block, weight in zip(model.blocks, before, strict=True):
        error = (block.merged_weight() - weight).abs()
        assert (error <= block.weight.float().abs() * 2**-8 + 1e-9).all()


def test_equal_and_missing_directions_still_give_orthogonal_ones() -> None:
    """A gradient of rank 1, as of a layer that sees one token, and one that is zero: nothing begins dead."""
    adapter, model = COMPONENT.build(LoraGaConfig(**SMALL)), Chain(16, 12, 10)
    first = torch.ones(12, 1) @ torch.randn(1, 16)
    adapter.prepare(model, GivenProbe(gradients={"blocks.0.weight": first, "blocks.1.weight": torch.zeros(10, 12)}))
    put(adapter, model)
    for block, outputs in zip(model.blocks, (12, 10), strict=True):
        assert_close(block.lora_A @ block.lora_A.T, torch.eye(4) * outputs**0.5 / 16)
        assert_close(block.lora_B.T @ block.lora_B, torch.eye(4) * outputs**0.5 / 16)


def test_gradients_are_asked_for_in_portions_of_the_memory_given() -> None:
    """24 x 16 numbers of 4 bytes are 1.5 kB, and 16 x 20 and 20 x 12 together 2.2 kB. What is found is the same."""
    whole, _, one = chain(probe_steps=2)
    model, _, probe = chain(probe_gb=2.3e-6)
    assert one.asked == [([f"blocks.{i}.weight" for i in range(3)], 2)]
    assert [names for names, _ in probe.asked] == [["blocks.0.weight"], ["blocks.1.weight", "blocks.2.weight"]]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), whole.parameters(), strict=True))


def test_twice_the_rank_must_fit_into_each_layer() -> None:
    with pytest.raises(UsageError, match=r"7 is more than blocks.2 has room for, which is 12 x 20; at most 6"):
        chain(rank=7)


def test_a_weight_without_a_gradient_is_one_clear_message() -> None:
    class Stored(StoredLinear):
        in_features, out_features, bias = 16, 12, None

    model = Chain(16, 12)
    model.blocks[0] = Stored()
    with pytest.raises(UsageError, match=r"blocks.0 is a Stored, and a gradient.*--quantizer none"):
        COMPONENT.build(LoraGaConfig(**SMALL)).prepare(model, GivenProbe())
