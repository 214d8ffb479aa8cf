"""Names of parameters, written as few patterns that stand for each of them once."""

from __future__ import annotations

import re
from itertools import product

import pytest
from torch import nn

from mt_train.assemble.parameter_names import collapse_names, describe_trained
from mt_train.config.sections import TrainConfig


@pytest.mark.parametrize(
    ("names", "written"),
    [
        ([], []),
        (["norm.weight", "layers.3.w"], ["norm.weight", "layers.3.w"]),
        ([f"layers.{n}.{w}" for n in range(16) for w in "qk"], ["layers.{0..15}.q", "layers.{0..15}.k"]),
        ([f"layers.{n}" for n in (9, 0, 2, 3, 4, 10)], ["layers.{0,2..4,9..10}"]),
        ([f"layers.{n}.experts.{e}.w" for n in range(4) for e in range(8)], ["layers.{0..3}.experts.{0..7}.w"]),
        (["a.0.b.0", "a.1.b.0", "a.1.b.1", "a.2.b.0"], ["a.{0,2}.b.0", "a.1.b.{0..1}"]),
        (["0.weight", "1.weight", "odd {} %s.2"], ["{0..1}.weight", "odd {} %s.2"]),
    ],
)
def test_names_that_differ_in_numbers_are_one_pattern(names: list[str], written: list[str]) -> None:
    assert collapse_names(names) == written


def spell(pattern: str) -> list[str]:
    """Return what a shell makes of the pattern."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    numbers = [[each.split("..") for each in part.split(",")] for part in parts[1::2]]
    choices = [[n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)] for spans in numbers]
    return ["".join(f"{a}{b}" for a, b in zip(parts[::2], [*chosen, ""], strict=True)) for chosen in product(*choices)]


def test_the_patterns_name_each_parameter_once_and_no_other() -> None:
    places = [(a, b, c) for a in range(4) for b in range(5) for c in range(3) if (a * 7 + b * 3 + c * 5) % 4]
    names = [f"x.{a}.y.{b}.z.{c}.w" for a, b, c in places]
    spelled = [name for pattern in collapse_names(names) for name in spell(pattern)]
    assert sorted(spelled) == sorted(names)
    assert len(collapse_names(names)) < len(names) / 2


def test_only_what_is_trained_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nn.LayerNorm(2))
    model.get_parameter("0.weight").requires_grad = False
    assert describe_trained(model, TrainConfig(disable=("0.weight",))) == {
        "names": ["{0,2}.bias", "{1..2}.weight"],
        "chosen": True,
    }
    assert not describe_trained(model, TrainConfig())["chosen"]
