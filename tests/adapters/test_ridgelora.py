"""RidgeLoRA against the paper's formulas."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import assert_close, check_start_and_merge, linear, move, place, start

from mt_plugin_adapters.variants.ridgelora import COMPONENT
from mt_plugin_adapters.variants.ridgelora.config import RidgeLoraConfig
from mt_plugin_adapters.variants.ridgelora.layer import PARTS, RidgeLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}
EXACT_WITHIN = 0.3
"""How far a model's first output is from its base's, as a share of it; here, of four layers one after the other."""


def layer(**options: object) -> RidgeLinear:
    return start(COMPONENT.build(RidgeLoraConfig(**SMALL, **options)).layer(linear(), place(targets=("a", "b", "c"))))


def turn(own: dict[str, Tensor]) -> Tensor:
    return torch.diag(own["lora_lambda"] * own["lora_ridge"]) + 2.0 * own["lora_B"] @ own["lora_A"]


def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula() -> None:
    """Equations 1 and 2, transposed as torch's weights are."""
    compare_with_formula(move(layer()), lambda w, p: w @ turn(p))


def test_it_begins_as_algorithm_1_says() -> None:
    ours = layer()
    a, b = ours.lora_A.double(), ours.lora_B.double()
    ridge = ours.lora_ridge.double()
    u, s, v = torch.linalg.svd(a.T, full_matrices=False)  # the paper's A has the inputs first
    expected = (4 / 8) * v.T @ torch.diag(1 / s) @ u.T @ (torch.eye(24).double() - torch.diag(ridge))
    assert_close(b.T, expected)
    assert torch.equal(ridge[4:], torch.ones(20).double())
    assert ((ridge[:4] > 0) & (ridge[:4] < 1)).all()
    assert ours.lora_lambda.item() == 1


def test_it_begins_near_the_base_and_merges_and_unmerges() -> None:
    first = ((layer().merged_weight() - linear().weight).norm() / linear().weight.norm()).item()
    assert 0.01 < first < 0.2
    check_start_and_merge(layer(), linear(), first=0.2)


def test_a_merged_weight_knows_no_dropout() -> None:
    assert torch.equal(layer(dropout=0.5).train().merged_weight(), layer().merged_weight())


class Gradients:
    """Of one layer, as an engine would give them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def modules(self) -> object:
        return self.model.named_modules()

    def read(self, name: str, part: str = "weight") -> Tensor:
        found = self.model.get_parameter(name)
        return (found.grad if part == "gradient" else found).detach().clone()

    def write(self, name: str, value: Tensor, part: str) -> None:
        self.model.get_parameter(name).grad.copy_(value)


def test_squashing_adds_the_gradient_of_the_mean_nuclear_norm() -> None:
    """Equations 4 and 5, of one layer among three."""
    adapter, ours = COMPONENT.build(RidgeLoraConfig(**SMALL, squash=-0.5)), move(layer(squash=-0.5))
    ours(torch.randn(5, 24)).sum().backward()
    before = {part: getattr(ours, part).grad.clone() for part in PARTS}
    own = {part: getattr(ours, part).detach().double().requires_grad_() for part in PARTS}
    (-0.5 / 3 * torch.linalg.svdvals(turn(own) - torch.eye(24)).sum()).backward()
    assert adapter.steps
    adapter.after_backward(Gradients(nn.Sequential(ours)))
    for part in PARTS:
        assert_close((getattr(ours, part).grad - before[part]).double(), own[part].grad, 1e-4)


def test_without_it_no_step_is_looked_at() -> None:
    assert not COMPONENT.build(RidgeLoraConfig(**SMALL)).steps
