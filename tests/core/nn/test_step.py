"""Sums of blocks in a step: once for each token, in training alone, and with errors that name the figure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mt_core import ComponentError
from mt_core.nn import Batch, BlockContext, StepSums, TrainModel

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])


class Telling(nn.Module):
    """Reports something with a gradient, and counts the ids by their last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.asked: list[bool] = []

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        out_BTD = self.linear(x_BTD)
        self.asked.append(context.collects())
        context.report("size", out_BTD.square().sum(), out_BTD.numel())
        context.report("ones", out_BTD.new_ones(()), torch.tensor(2))
        context.gather("odd", torch.tensor([(context.positions_BT % 2).sum(), 1]))
        return out_BTD


class Model(TrainModel):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens, self.model.norm = nn.Embedding(8, 2), nn.LayerNorm(2)
        self.model.layers = nn.ModuleList([Telling(), Telling()])
        self.lm_head = nn.Linear(2, 8)


def step(model: Model, times: int = 1) -> StepSums:
    batch = Batch(IDS, torch.zeros_like(IDS), torch.arange(4).expand(2, 4), IDS)
    with model.sums.collecting():
        for _ in range(times):
            model(batch).square().sum().backward()
    return model.sums


def test_a_figure_is_added_up_over_blocks_and_micro_batches_and_a_new_step_begins_at_nothing() -> None:
    model = Model()
    once = dict(step(model).figures)
    for _ in range(2):
        sums = step(model, times=3)
        assert sums.figures["ones"][0] == 6
        assert sums.figures["ones"][1] == 12
        assert sums.figures["size"][0] == pytest.approx(3 * float(once["size"][0]))
        assert sums.figures["size"][1] == 3 * 2 * IDS.numel() * 2
        assert sums.gathered["odd"].tolist() == [24, 6]
        assert sums.gathered["odd"].dtype == torch.float64


def test_a_recomputed_block_computes_its_figures_twice_and_adds_them_once() -> None:
    model, recomputed = Model(), Model()
    recomputed.load_state_dict(model.state_dict())
    recomputed.checkpoint_blocks = True
    plain, repeated = step(model, times=2), step(recomputed, times=2)
    assert {name: list(map(float, pair)) for name, pair in plain.figures.items()} == {
        name: list(map(float, pair)) for name, pair in repeated.figures.items()
    }
    assert torch.equal(plain.gathered["odd"], repeated.gathered["odd"])
    assert recomputed.model.layers[0].asked == [True] * 4, "else other tensors would be saved the second time"
    assert model.model.layers[0].asked == [True] * 2


def test_nothing_is_added_up_outside_of_a_step() -> None:
    model = Model()
    batch = Batch(IDS, torch.zeros_like(IDS), torch.arange(4).expand(2, 4), IDS)
    model(batch)
    with model.sums.collecting():
        pass
    model(batch)
    assert model.sums.figures == model.sums.gathered == {}
    assert model.model.layers[1].asked == [False, False]
    BlockContext(IDS, IDS, model.attention).report("alone", torch.ones(()), 1.0)  # a context without sums


def test_sums_have_no_gradient() -> None:
    sums, x = StepSums(), torch.ones((), requires_grad=True)
    with sums.collecting():
        sums.report("x", 2 * x, x)
        sums.gather("x", x[None])
    assert not any(each.requires_grad for each in (*sums.figures["x"], sums.gathered["x"]))


def test_counts_stay_exact_where_half_precision_would_round_them() -> None:
    sums = StepSums()
    with sums.collecting():
        for _ in range(3):
            sums.report("x", torch.tensor(257.0, dtype=torch.bfloat16) + 0, 1.0)
            sums.gather("x", torch.tensor([2**40 + 1]))
    assert sums.gathered["x"].item() == 3 * (2**40 + 1)
    assert sums.figures["x"][0] == 3 * 256, "the value itself was in bf16"


def test_what_is_no_figure_is_refused_by_name() -> None:
    sums = StepSums()
    with sums.collecting():
        with pytest.raises(ComponentError, match=r"reports 'load' with a value of shape \(3,\).*context.gather\(name"):
            sums.report("load", torch.ones(3), 1.0)
        with pytest.raises(ComponentError, match=r"reports 'load' with a value of shape \(2,\)"):
            sums.report("load", torch.ones(()), torch.ones(2))
        sums.gather("load", torch.ones(3))
        with pytest.raises(ComponentError, match=r"gather 'load' with the shapes \(3,\) and \(4,\)"):
            sums.gather("load", torch.ones(4))
