"""LoRA-SB against the paper's formula in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from given_probe import Chain, with_gradients
from peft_layers import assert_close, check_start_and_merge, move, peft_lora

from mt_plugin_adapters.variants.lora_sb import COMPONENT
from mt_plugin_adapters.variants.lora_sb.config import LoraSbConfig

SMALL: dict = {"rank": 4, "alpha": 8.0}
LEARNING: dict = {"margin": 0.05}  # 224 numbers
EXACT_WITHIN: float = 0.3  # the first step of full training is in A and B
WIDTHS = (24, 16, 20)


def chain(**options: object) -> tuple[Chain, dict[str, torch.Tensor]]:
    model, gradients, _ = with_gradients(COMPONENT.build(LoraSbConfig(**SMALL, **options)), *WIDTHS)
    return model, gradients


def test_it_begins_as_the_first_step_cut_to_its_rank_between_orthonormal_frozen_matrices() -> None:
    """ΔW = -η sign(∇L) = U S Vᵀ; B = U_r, A = V_rᵀ, R = S_r / s."""
    model, gradients = chain(step=0.01)
    for block, base, gradient in zip(model.blocks, Chain(*WIDTHS).blocks, gradients.values(), strict=True):
        u, s, v = torch.linalg.svd(-0.01 * gradient.double().sign(), full_matrices=False)
        a, b, r = block.lora_A.double(), block.lora_B.double(), block.lora_R.double()
        assert_close(r, torch.diag(s[:4]) / 2.0)
        assert_close(a @ a.T, torch.eye(4, dtype=torch.float64))
        assert_close(b.T @ b, torch.eye(4, dtype=torch.float64))
        assert_close(2.0 * b @ r @ a, (u[:, :4] * s[:4]) @ v[:4])
        assert torch.equal(block.weight, base.weight)


def test_only_the_square_is_trained() -> None:
    adapter = COMPONENT.build(LoraSbConfig(**SMALL))
    model, _, _ = with_gradients(adapter, *WIDTHS)
    assert adapter.trainable_parameters(model) == [f"blocks.{i}.lora_R" for i in range(2)]
    assert adapter.saved_state(model) == [f"blocks.{i}.lora_{each}" for i in range(2) for each in "ABR"]


def test_output_gradients_and_merged_weight_are_those_of_pefts_lora_with_the_square_in_its_a() -> None:
    """peft's A is our R A: the gradient of R is that of peft's A times Aᵀ."""
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        move(block)
        theirs = peft_lora(base, rank=4, alpha=8.0)
        theirs.lora_A["default"].weight.data = (block.lora_R @ block.lora_A).detach()
        theirs.lora_B["default"].weight.data = block.lora_B.detach().clone()
        x = torch.randn(2, 5, block.in_features, generator=torch.Generator().manual_seed(3))
        x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        out, expected = block(x_ours), theirs(x_theirs)
        assert_close(out, expected)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(4))
        out.backward(grad)
        expected.backward(grad)
        assert_close(x_ours.grad, x_theirs.grad)
        assert_close(block.lora_R.grad, theirs.lora_A["default"].weight.grad @ block.lora_A.T)
        theirs.merge()
        assert_close(block.merged_weight(), theirs.get_base_layer().weight)


def test_it_begins_a_step_away_from_the_base_and_merges_and_unmerges() -> None:
    """Every weight is up to 5e-5 away, of about 0.1."""
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        check_start_and_merge(block, base, first=1e-3)
