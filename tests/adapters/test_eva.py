"""EVA against peft's on the same activations, and against a decomposition of them in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from peft import EvaConfig as PeftEvaConfig
from peft import LoraConfig, get_eva_state_dict
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from given_probe import Chain, GivenProbe, put
from peft_layers import assert_close, check_start_and_merge

from mt_core import ComponentError, UsageError
from mt_plugin_adapters.variants.eva import COMPONENT
from mt_plugin_adapters.variants.eva.adapter import Eva
from mt_plugin_adapters.variants.eva.config import EvaConfig

SMALL: dict = {"rank": 4, "alpha": 8.0}
WIDTHS = (24, 16, 20, 12)


def rows() -> Tensor:
    """x and -x, so that every layer's inputs have the mean zero: peft takes the mean off. Large enough to bend the tanh."""
    x = 20 * torch.randn(60, WIDTHS[0], generator=torch.Generator().manual_seed(5)) * 0.5 ** torch.arange(WIDTHS[0])
    return torch.cat([x, -x])


def inputs(model: Chain, x: Tensor) -> dict[str, Tensor]:
    """What each layer is given."""
    seen: dict[str, Tensor] = {}
    for i, block in enumerate(model.blocks):
        seen[f"blocks.{i}"] = x
        x = torch.tanh(block(x))
    return seen


def moments(model: Chain, x: Tensor) -> dict[str, Tensor]:
    return {name: each.double().T @ each.double() / len(each) for name, each in inputs(model, x).items()}


def prepare(x: Tensor, **options: object) -> tuple[Chain, Eva, GivenProbe]:
    model = Chain(*WIDTHS)
    adapter, probe = COMPONENT.build(EvaConfig(**{**SMALL, **options})), GivenProbe(moments=moments(model, x))
    adapter.prepare(model, probe)
    return model, adapter, probe


def pefts(rho: float) -> dict[str, Tensor]:
    config = LoraConfig(r=4, target_modules=r"blocks\.\d", eva_config=PeftEvaConfig(rho=rho), init_lora_weights="eva")
    return get_eva_state_dict(
        Chain(*WIDTHS),
        [{"input": rows()}] * 2,
        config,
        forward_fn=lambda model, batch: model(batch["input"]),
        prepare_model_inputs_fn=None,
        prepare_layer_inputs_fn=None,
        show_progress_bar=False,
    )


@pytest.mark.parametrize("rho", [1.0, 2.0])
def test_ranks_and_directions_are_pefts_on_the_same_activations(rho: float) -> None:
    """1e-5: peft's are of fp32, and were updated from batch to batch."""
    model, adapter, _ = prepare(rows(), rho=rho)
    theirs = pefts(rho)
    assert adapter.plan["ranks"] == {name: len(each) for name, each in theirs.items()}
    assert (len(set(adapter.plan["ranks"].values())) > 1) == (rho > 1), "something was moved"
    put(adapter, model)
    for name, block in zip(theirs, model.blocks, strict=True):
        assert_close(block.lora_A, theirs[name].float())


def test_directions_are_the_right_singular_vectors_of_all_inputs() -> None:
    """In float64, inputs that have a mean: A Aᵀ = I, and A spans the first r of V."""
    x = rows()[:60] + 0.5
    model, adapter, _ = prepare(x, rho=1.0)
    seen = inputs(model, x)
    put(adapter, model)
    for name, block in zip(seen, model.blocks, strict=True):
        _, _, v = torch.linalg.svd(seen[name].double(), full_matrices=False)
        a = block.lora_A.double()
        assert_close(a @ a.T, torch.eye(4, dtype=torch.float64))
        assert_close(a.T @ a, v[:4].T @ v[:4])


def test_the_largest_shares_of_all_layers_get_the_ranks_within_the_budget() -> None:
    """Shares of the squares, in float64 from the inputs themselves; a layer has at most rho times its rank."""
    _, adapter, _ = prepare(rows(), rho=3.0)
    shares = {}
    for name, each in inputs(Chain(*WIDTHS), rows()).items():
        squares = torch.linalg.svdvals(each.double()) ** 2
        shares[name] = (squares / squares.sum())[:12]
    least = torch.cat(list(shares.values())).sort(descending=True).values[11]
    assert adapter.plan == {"ranks": {name: int((each >= least).sum()) for name, each in shares.items()}}
    assert sum(adapter.plan["ranks"].values()) == 12


def test_a_layer_without_a_rank_stays_as_it_is() -> None:
    model, adapter = Chain(8, 8, 8), COMPONENT.build(EvaConfig(rank=1, rho=2.0))
    even, narrow = torch.eye(8, dtype=torch.float64), torch.diag(0.5 ** torch.arange(8, dtype=torch.float64))
    adapter.prepare(model, GivenProbe(moments={"blocks.0": even, "blocks.1": narrow}))
    assert adapter.plan == {"ranks": {"blocks.0": 0, "blocks.1": 2}}
    put(adapter, model)
    assert type(model.blocks[0]) is nn.Linear
    assert adapter.trainable_parameters(model) == ["blocks.1.lora_A", "blocks.1.lora_B"]
    assert model.blocks[1].scale == 16.0, "of the rank that the config gives it, 1"


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    model, adapter, _ = prepare(rows())
    put(adapter, model)
    for block, base in zip(model.blocks, Chain(*WIDTHS).blocks, strict=True):
        check_start_and_merge(block, base)


def test_a_plan_gives_the_same_shapes_and_nothing_is_asked_again() -> None:
    model, adapter, probe = prepare(rows(), probe_steps=3)
    put(adapter, model)
    assert [steps for _, steps in probe.asked] == [3]
    again, second = Chain(*WIDTHS), COMPONENT.build(EvaConfig(**SMALL, probe_steps=3))
    second.plan = adapter.plan
    second.inject(again)
    assert [each.shape for each in again.parameters()] == [each.shape for each in model.parameters()]
    assert len(probe.asked) == 1
    with pytest.raises(ComponentError, match=r"begins with values from rows of the run.*call its prepare"):
        again.blocks[0].initialise(torch.Generator())


def test_moments_are_asked_for_in_portions_of_the_memory_given() -> None:
    """The first layer's is 24 x 24 numbers of 8 bytes, 4.6 kB; both others' together are 5.2 kB."""
    _, whole, _ = prepare(rows())
    _, adapter, probe = prepare(rows(), probe_gb=5.3e-6)
    assert [names for names, _ in probe.asked] == [["blocks.0"], ["blocks.1", "blocks.2"]]
    assert adapter.plan == whole.plan


def test_a_rank_that_a_layer_has_no_room_for_is_one_clear_message() -> None:
    with pytest.raises(
        UsageError, match=r"adapter.rank: 13 is more than blocks.2 has room for, which is 12 x 20; at most 12"
    ):
        prepare(rows(), rank=13)
