"""Views: the base under an adapter, shown by a flag on its layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn

from mt_conformance.forward import mean_loss, outputs, rows_of
from mt_conformance.tiny_config import TinyConfig
from mt_conformance.tiny_model import TinyModel
from mt_core import LowRankConfig, UsageError
from mt_core.adapters import LinearAdapter, Place, adapted_layers, merge, unmerge, viewing
from mt_core.nn import AdaptedLinear, Batch, TrainModel
from mt_plugin_standard.lora import Lora


class Added(AdaptedLinear):
    """W x + 1, so that a view cannot be missed."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__(base)
        self.added = self.new_parameter(self.out_features)

    def initialise(self, generator: Generator) -> None:
        self.added.data.fill_(1.0)

    def adapted_output(self, x: Tensor) -> Tensor:
        return self.base_output(x) + self.added


def plain() -> TrainModel:
    torch.manual_seed(0)
    return TinyModel(TinyConfig(vocab_size=32, max_seq_len=16))


@pytest.fixture
def model() -> TrainModel:
    made = plain()
    Lora(LowRankConfig(rank=2)).inject(made)
    for _, layer in adapted_layers(made):
        nn.init.normal_(layer.lora_A)
        nn.init.normal_(layer.lora_B)
    return made


@pytest.fixture
def batch() -> Batch:
    return rows_of(torch.randint(32, (2, 12), generator=torch.Generator().manual_seed(1)), 12)


def test_the_base_is_the_model_without_the_adapter_and_no_weight_moves(model: TrainModel, batch: Batch) -> None:
    before = {name: each.clone() for name, each in model.named_parameters()}
    live = outputs(model, batch)
    with viewing(model, "base"):
        assert torch.equal(outputs(model, batch), outputs(plain(), batch))
        with viewing(model, "live"):
            assert torch.equal(outputs(model, batch), live)
        assert torch.equal(outputs(model, batch), outputs(plain(), batch))
    assert torch.equal(outputs(model, batch), live)
    assert not torch.allclose(live, outputs(plain(), batch))
    assert all(torch.equal(before[name], each) for name, each in model.named_parameters())


def test_a_failure_inside_leaves_the_model_live(model: TrainModel, batch: Batch) -> None:
    live = outputs(model, batch)
    with pytest.raises(ZeroDivisionError), viewing(model, "base"):
        _ = 1 / 0
    assert torch.equal(outputs(model, batch), live)


def test_there_are_two_views(model: TrainModel) -> None:
    with pytest.raises(UsageError, match="no view 'sft'; it has live, base"), viewing(model, "sft"):  # type: ignore[arg-type]
        pass


def test_a_merged_base_is_no_base_any_more(model: TrainModel, batch: Batch) -> None:
    merge(model)
    with pytest.raises(UsageError, match="merged into the base"), viewing(model, "base"):
        pass
    unmerge(model)
    with viewing(model, "base"):
        assert torch.equal(outputs(model, batch), outputs(plain(), batch))


@pytest.mark.parametrize("recompute", [False, True])
def test_nothing_of_the_adapter_has_a_gradient_of_the_base(model: TrainModel, batch: Batch, recompute: bool) -> None:
    """Where blocks run again in the backward, too: the next step trains as if nobody had looked."""

    def gradients() -> list[Tensor | None]:
        model.zero_grad()
        mean_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        return [each.grad for _, layer in adapted_layers(model) for _, each in layer.own_parameters()]

    model.train()
    model.checkpoint_blocks = recompute
    expected = gradients()
    with viewing(model, "base"):
        assert gradients() == [None] * len(expected)
    assert all(torch.equal(one, other) for one, other in zip(expected, gradients(), strict=True))


@pytest.mark.parametrize("build", [lambda: Added(nn.Linear(4, 4)), lambda: Added(nn.Linear(4, 4, bias=False))])
def test_a_compiled_layer_follows_the_view(build: Callable[[], Added]) -> None:
    """Its code is made once for each view, and not again when that comes back."""
    layer, made = build(), []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        made.append(graph)
        return graph.forward

    block = nn.Sequential(layer)
    layer.initialise(torch.Generator())
    block.compile(backend=backend)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(block(x), layer.base_output(x) + 1)
            with viewing(block, "base"):
                assert torch.equal(block(x), layer.base_output(x))
    assert len(made) == 2


class Rewriting(LinearAdapter[LowRankConfig]):
    rewrites_base = True


class Away(LinearAdapter[LowRankConfig]):
    base_is_reference = False

    def layer(self, base: nn.Module, place: Place) -> Added:
        return Added(base)


def test_an_adapter_of_layers_has_its_base_as_reference_unless_it_says_otherwise() -> None:
    assert LinearAdapter(LowRankConfig()).base_is_reference
    assert not Rewriting(LowRankConfig()).base_is_reference
    assert not Away(LowRankConfig()).base_is_reference
