"""How a space is written: what reads back, what every text means, and what is refused."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import optuna
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mt_plugin_search.space import Choices, Range, combinations, read_dimension, read_space, size, with_values
from mt_plugin_search.study import _suggest

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)
WHOLE = st.integers(-(10**9), 10**9)
WORDS = st.text("abcxyz-_/@.", min_size=1, max_size=8).filter(lambda text: ".." not in text)


@settings(deadline=None, max_examples=60)
@given(NUMBERS, NUMBERS, st.booleans())
def test_a_range_of_fractions_reads_back_as_it_is_written(low: float, high: float, log: bool) -> None:
    assume(low < high and (low > 0 or not log))
    found = Range(low=low, high=high, log=log)
    assert read_dimension(str(found)) == found


@settings(deadline=None, max_examples=60)
@given(WHOLE, st.integers(1, 1000), st.integers(1, 1000))
def test_a_range_of_whole_numbers_reads_back_and_its_values_are_those_of_python(
    low: int, step: int, count: int
) -> None:
    found = read_dimension(f"{low}..{low + step * count}/{step}")
    assert found == Range(low=low, high=low + step * count, step=step, whole=True)
    assert read_dimension(str(found)) == found
    assert found.all == tuple(range(low, low + step * count + 1, step))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(WHOLE, NUMBERS, st.booleans(), WORDS), min_size=2, max_size=6, unique_by=str))
def test_choices_survive_a_file(values: list[Any]) -> None:
    try:
        found = read_dimension(values)
    except ValueError as error:  # two texts of one number, such as 1e5 and 100000.0
        assert "twice" in str(error)  # noqa: PT017
        return
    assert read_dimension(yaml.safe_load(yaml.safe_dump(found.as_raw()))) == found


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=20))
def test_any_text_is_a_range_choices_or_a_message_that_says_how(text: str) -> None:
    try:
        found = read_dimension(text)
    except ValueError as error:
        assert str(error).endswith(".")  # noqa: PT017
    else:
        assert isinstance(found, Range | Choices)
        assert len(found.probes) >= 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("log:1e-5..1e-3", Range(low=1e-5, high=1e-3, log=True)),
        ("0..1", Range(low=0, high=1, whole=True)),
        ("0..1.0", Range(low=0.0, high=1.0)),
        ("-2..-1", Range(low=-2, high=-1, whole=True)),
        ("0..1/0.25", Range(low=0.0, high=1.0, step=0.25)),
        ("log:1..64", Range(low=1, high=64, log=True, whole=True)),
        ("4,8,16", Choices((4, 8, 16))),
        ("1e-3,2e-3", Choices((1e-3, 2e-3))),
        ("true,false", Choices((True, False))),
        ("none,0.5", Choices((None, 0.5))),
        ("adamw, lion", Choices(("adamw", "lion"))),
        ("'4','8'", Choices((4.0, 8.0))),
        ("../a.jsonl,../b.jsonl", Choices(("../a.jsonl", "../b.jsonl"))),
    ],
)
def test_what_a_text_means(text: str, found: Any) -> None:
    assert read_dimension(text) == found


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ("1e-3..1e-5", "holds less than two values"),
        ("4..4", "holds less than two values"),
        ("log:0..1", "a logarithm needs numbers above 0"),
        ("log:1..10/1", "not both"),
        ("0..1/0.3", "Nearest: 0.0..0.9/0.3"),
        ("1..10/4", "Nearest: 1..9/4"),
        ("0..1/0", "the step is above 0"),
        ("0..9999999999999999999", "too large for a sampler"),
        ("1e-5..abc", "no range"),
        ("log:1e-5,1e-3", "no range"),
        ("log:abc", "Write low..high"),
        ("adamw", "one value, adamw, so there is nothing to search"),
        (4, "one value, 4, so there is nothing to search"),
        (None, "one value, none, so there is nothing to search"),
        ("", "no value, so there is nothing to search"),
        ([], "no value"),
        ("4,4", "has 4 twice"),
        ("4,1..8", "has the range 1..8 among values"),
        ("[1,2],[3,4]", "a value is a number, a word"),
        ("a,'b", "cannot be read"),
        (".nan,1", "a value is a number"),
        ("2020-01-01,2020-01-02", "a value is a number"),
    ],
)
def test_what_is_refused_and_why(given_: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        read_dimension(given_)


def test_every_fault_of_a_space_is_told_at_once_with_its_key() -> None:
    space, faults = read_space({"optimizer": {"lr": "3..1"}, "train.micro-batch-size": "4", "model.n_layers": "1..3"})
    assert list(space) == ["model.n_layers"]
    assert [fault.key for fault in faults] == ["search.optimizer.lr", "search.train.micro-batch-size"]
    assert read_space({})[1][0].problem == "there is nothing to search."


def test_keys_are_nested_or_dotted_with_either_dash_and_given_once() -> None:
    space, faults = read_space(
        {"optimizer": {"name": "adamw,adam", "lr": "0.1..0.2"}, "optimizer.weight-decay": [0.0, 0.1]}
    )
    assert not faults
    assert list(space) == ["optimizer.name", "optimizer.lr", "optimizer.weight_decay"]
    _, faults = read_space({"optimizer": "adamw,adam", "optimizer.name": "adam,lion"})
    assert "given twice" in str(faults[0])


def test_combinations_go_through_all_values_once() -> None:
    space, _ = read_space({"a.x": "1..3", "a.y": "0..1/0.5", "a.z": "p,q"})
    found = [tuple(each.values()) for each in combinations(space)]
    assert size(space) == len(found) == len(set(found)) == 18
    assert found[0] == (1, 0.0, "p")
    assert found[-1] == (3, 1.0, "q")
    assert size(read_space({"a.x": "0.0..1.0"})[0]) is None


@pytest.mark.parametrize("text", ["0.0..0.3/0.1", "0.1..0.7/0.1", "0.0..0.9/0.15", "-0.3..0.6/0.1", "1e-7..9e-7/2e-7"])
def test_values_in_steps_are_those_that_a_person_writes_and_none_is_beyond_the_end(text: str) -> None:
    found = read_dimension(text)
    assert isinstance(found, Range)
    assert found.all is not None
    low, step = Decimal(repr(found.low)), Decimal(repr(found.step))
    assert [Decimal(repr(value)) for value in found.all] == [low + number * step for number in range(found.steps + 1)]
    assert (found.all[0], found.all[-1]) == (found.low, found.high)


def test_values_go_over_a_config_as_on_the_command_line() -> None:
    raw = {"optimizer": {"name": "adam", "beta1": 0.8}, "train": {"epochs": 2}, "model": {"rope_scaling": {"a": 1}}}
    found = with_values(
        raw, {"optimizer.name": "adamw", "optimizer.lr": 0.1, "train.steps": 5, "model.rope_scaling.b": 2}
    )
    assert found == {
        "optimizer": {"name": "adamw", "lr": 0.1},  # options of adam are gone
        "train": {"steps": 5},  # which excludes epochs
        "model": {"rope_scaling": {"a": 1, "b": 2}},
    }
    assert raw["model"] == {"rope_scaling": {"a": 1}}, "the given config stays as it was"


@settings(deadline=None, max_examples=20)
@given(st.floats(1e-6, 1), st.floats(1.001, 1e6), st.integers(0, 2**32 - 1))
def test_every_value_that_a_sampler_draws_lies_in_the_range(low: float, factor: float, seed: int) -> None:
    found = Range(low=low, high=low * factor, log=bool(random.Random(seed).getrandbits(1)))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
    _suggest(trial, "x.y", found)
    assert low <= trial.params["x.y"] <= low * factor
    assert math.isfinite(trial.params["x.y"])
