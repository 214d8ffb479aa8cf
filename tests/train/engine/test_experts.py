"""Ranks that divide the experts of a mixture compute what one process does, and their checkpoints are those of any layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mt_core import whole_shape
from mt_core.errors import ConfigError
from mt_train.engine.experts import cut_rows, divided_parameters, own_rows, split_groups

Launch = Callable[..., dict[str, Any]]
STAGES = (0, 1, 2, 3)
PLAIN = {"name": "sgd", "lr": 0.1}
EXPERT: dict[str, Any] = {"expert": 2, "steps": 3, "eval_every": 3}
CASES: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in STAGES},
    **{f"sgd{stage}": {"stage": stage, "optimizer": PLAIN, "clip": clip} for stage, clip in ((0, 0.2), (2, None))},
    "split": {"stage": 2, "micro": 2},
    "packed": {"stage": 3, "objective": "pretrain", "micro": 2},
    "recompute": {"stage": 3, "recompute": True},
    "sequence": {"stage": 1, "sequence": 2},
    "sequence-packed": {"stage": 3, "sequence": 2, "objective": "pretrain"},
    **{f"blind{stage}": {"stage": stage, "blind": True, "steps": 1, "eval_every": 9} for stage in STAGES},
    **{f"bf16-{stage}": {"stage": stage, "dtype": "bf16"} for stage in (1, 3)},
    **{f"resume{stage}": {"stage": stage, "do": "resume"} for stage in (0, 1, 3)},
    "bf16-resume": {"stage": 1, "dtype": "bf16", "do": "resume"},
    "joined": {"stage": 1, "do": "resume", "then": {"stage": 3, "expert": 1}},
    "cut": {"stage": 3, "expert": 1, "do": "resume", "then": {"stage": 0, "expert": 2}},
    "whole": {"stage": 0, "do": "resume", "then": {"stage": 2}},
    "muon": {"stage": 1, "optimizer": {"name": "muon", "lr": 0.01}, "do": "resume", "then": {"stage": 3}},
    **{f"look{stage}": {"stage": stage, "do": "look"} for stage in STAGES},
    **{f"inf{stage}": {"stage": stage, "do": "inf"} for stage in (0, 1)},
}
FOUR = ("zero0", "zero3", "sequence-packed", "resume3", "joined", "look3")
"""On four processes two hold the same experts."""


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    wanted = ("zero0", "sgd0", "sgd2", "packed", "blind0", "muon", "look0")
    return launch(
        "train/engine/expert_worker.py", 1, tmp_path_factory.mktemp("one"), {n: EXPERT | CASES[n] for n in wanted}
    )


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {name: EXPERT | case for name, case in CASES.items()}
    return launch("train/engine/expert_worker.py", 2, tmp_path_factory.mktemp("two"), cases)


@pytest.fixture(scope="module")
def four(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {name: EXPERT | CASES[name] for name in FOUR}
    return launch("train/engine/expert_worker.py", 4, tmp_path_factory.mktemp("four"), cases)


def assert_close(ours: list[float], theirs: list[float], tolerance: float, what: str) -> None:
    worst = max((abs(a - b) / max(abs(b), 1e-6) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    assert worst <= tolerance, (what, worst)


def assert_equal(ours: dict[str, Any], theirs: dict[str, Any], *, weights: float = 5e-5) -> None:
    """Losses, norms and evaluations to 1e-6 of each (2e-7 was measured), and weights.

    Adam divides small gradients by their size, and with them their rounding: 2e-5 was measured after three steps of 1e-2.
    """
    assert ours["tokens"] == theirs["tokens"]
    for key in ("losses", "norms", "eval"):
        assert_close(ours[key], theirs[key], 1e-6, key)
    assert ours["values"].keys() == theirs["values"].keys()
    for name, values in theirs["values"].items():
        assert max(abs(a - b) for a, b in zip(ours["values"][name], values, strict=True)) < weights, name


@pytest.mark.parametrize("name", [*(f"zero{stage}" for stage in STAGES), "split", "recompute", "sequence"])
def test_experts_on_two_ranks_equal_one_process(one: dict[str, Any], two: dict[str, Any], name: str) -> None:
    """Clipping is on, and rows differ in length, so that ranks have unequal numbers of tokens."""
    assert_equal(two[name], one["zero0"])


@pytest.mark.parametrize("name", ["packed", "sequence-packed"])
def test_packed_rows_too(one: dict[str, Any], two: dict[str, Any], name: str) -> None:
    assert_equal(two[name], one["packed"])


@pytest.mark.parametrize("name", ["sgd0", "sgd2"])
def test_weights_are_equal_to_1e_6_clipped_and_not(one: dict[str, Any], two: dict[str, Any], name: str) -> None:
    """Where updates are proportional to gradients; a norm that counts an expert twice, or not, shows in the clipped ones."""
    assert_equal(two[name], one[name], weights=1e-6)


def test_a_gradient_transform_sees_whole_gradients(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Muon makes those of the stacked biases orthogonal, in bf16, which shows in weights and not in losses."""
    assert_equal(two["muon"], one["muon"], weights=1e-3)


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_without_tokens_for_its_experts_goes_on(one: dict[str, Any], two: dict[str, Any], stage: int) -> None:
    """All tokens choose the same two of four experts, which are on one rank: the other one sends all, and gets none."""
    assert min(two[f"blind{stage}"]["fewest"]) == 0
    assert_equal(two[f"blind{stage}"], one["blind0"])


@pytest.mark.parametrize("name", ["zero0", "zero3"])
def test_two_ranks_that_hold_the_same_experts_agree(one: dict[str, Any], four: dict[str, Any], name: str) -> None:
    assert_equal(four[name], one["zero0"])


def test_experts_are_divided_among_ranks_that_share_rows(one: dict[str, Any], four: dict[str, Any]) -> None:
    assert_equal(four["sequence-packed"], one["packed"])


def test_bf16_stays_near_fp32_at_every_stage(two: dict[str, Any]) -> None:
    """bf16 keeps 8 bits of a number: 2 ** -8 is 4e-3, and rounding errors of a few layers add up to a few of them."""
    assert_close(two["bf16-1"]["losses"], two["bf16-3"]["losses"], 1e-3, "stages")
    assert_close(two["bf16-1"]["losses"], two["zero1"]["losses"], 2e-2, "fp32")


@pytest.mark.parametrize("name", ["resume0", "resume1", "resume3"])
def test_a_run_resumes_bit_for_bit(two: dict[str, Any], name: str) -> None:
    whole = two[name.replace("resume", "zero")]
    assert two[name]["losses"] == whole["losses"]
    assert two[name]["state"] == whole["state"]


def test_four_ranks_and_bf16_resume_bit_for_bit(two: dict[str, Any], four: dict[str, Any]) -> None:
    assert four["resume3"]["state"] == four["zero3"]["state"]
    assert two["bf16-resume"]["state"] == two["bf16-1"]["state"]


@pytest.mark.parametrize("name", ["joined", "cut", "whole"])
def test_a_run_goes_on_with_other_expert_ranks_and_stages(one: dict[str, Any], two: dict[str, Any], name: str) -> None:
    assert_equal(two[name], one["zero0"])


def test_a_run_goes_on_without_expert_ranks_on_four(one: dict[str, Any], four: dict[str, Any]) -> None:
    assert_equal(four["joined"], one["zero0"])


@pytest.mark.parametrize(("ranks", "stage"), [*(("two", stage) for stage in STAGES), ("four", 3)])
def test_adapters_and_callbacks_see_and_write_whole_parameters(
    one: dict[str, Any], ranks: str, stage: int, request: pytest.FixtureRequest
) -> None:
    """Weights, gradients and moments read as those of one process; what is written is there; and texts are its texts."""
    found, alone = request.getfixturevalue(ranks)[f"look{stage}"], one["look0"]
    assert found["true"] == [True] * 5
    assert found["texts"] == alone["texts"]
    for key, values in alone["read"].items():
        ours, theirs = torch.tensor(found["read"][key]), torch.tensor(values)
        assert (ours - theirs).norm() < 2e-5 * theirs.norm(), key


@pytest.mark.parametrize("stage", [0, 1])
def test_a_loss_that_is_not_a_number_changes_nothing_on_any_rank(two: dict[str, Any], stage: int) -> None:
    assert two[f"inf{stage}"].items() >= {"finite": False, "applied": False, "unchanged": True}.items()


# ------------------------------------------------------------------------------------------------------ without ranks


class Layer(nn.Module):
    """Two parameters with rows for each of six experts, and a module below that is none."""

    exchange = None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(24.0).view(6, 2, 2))
        self.bias = nn.Parameter(torch.arange(6.0))
        self.shared = nn.Linear(6, 6)


def test_a_layer_has_the_same_part_of_every_parameter_of_its_own() -> None:
    layer = Layer()
    weight, bias = cut_rows(layer.weight, 1, 3), cut_rows(layer.bias, 1, 3)
    assert weight.flatten().tolist() == [8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    assert bias.tolist() == [2.0, 3.0]
    assert whole_shape(weight) == (6, 2, 2)
    assert whole_shape(layer.shared.weight) == tuple(layer.shared.weight.shape) == (6, 6)
    assert own_rows(bias, torch.arange(6.0)).tolist() == [2.0, 3.0]
    assert [tuple(each.shape) for each in divided_parameters(nn.ModuleList([layer]), 3)] == [(6, 2, 2), (6,)]


def test_experts_that_do_not_divide_are_refused_with_the_numbers_that_do() -> None:
    with pytest.raises(ConfigError, match=r"6 experts do not divide among 4 ranks") as caught:
        divided_parameters(Layer(), 4)
    assert "Set --parallel.expert to one of 2." in str(caught.value)
    with pytest.raises(ConfigError, match="the model has no layer of experts to divide"):
        divided_parameters(nn.Linear(6, 6), 2)


def test_divided_parameters_have_groups_of_their_own_with_the_same_options() -> None:
    layer: Any = Layer()
    for name in ("weight", "bias"):
        setattr(layer, name, cut_rows(getattr(layer, name), 0, 2))
        getattr(layer, name).group_name = "ep_size_2"
    groups = [
        {"params": [layer.weight, layer.shared.weight], "name": "decay", "weight_decay": 0.1},
        {"params": [layer.bias], "name": "no_decay", "lr": 0.5},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    split_groups(optimizer)
    found = {
        (group["name"], group.get("title"), group["weight_decay"], group["lr"]) for group in optimizer.param_groups
    }
    assert found == {
        ("decay", None, 0.1, 0.1),
        ("ep_size_2", "decay", 0.1, 0.1),
        ("ep_size_2", "no_decay", 0, 0.5),
    }
