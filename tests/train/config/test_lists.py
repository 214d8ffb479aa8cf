"""Keys under which a run names several components: callbacks and trackers, on the command line and in files."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core.errors import UsageError
from mt_core.kinds import CORE_KINDS, Kinds
from mt_train.config.commandline import merge, parse
from mt_train.kinds import KINDS

EVERY = Kinds([*CORE_KINDS.values(), *KINDS])


def raw_config(*words: str) -> dict[str, Any]:
    return parse(words, switches=(), values=(), kinds=EVERY).raw


def test_names_and_options_may_come_in_any_order() -> None:
    expected = {"callbacks": {"early_stopping": {"patience": 5}, "ema": {}}}
    assert raw_config("--callbacks", "early-stopping,ema", "--callbacks.early-stopping.patience", "5") == expected
    assert (
        raw_config("--callbacks.early-stopping.patience", "5", "--callbacks", "early-stopping", "--callbacks", "ema")
        == expected
    )


def test_options_alone_name_the_component() -> None:
    assert raw_config("--trackers.csv.file", "table.csv") == {"trackers": {"csv": {"file": "table.csv"}}}


def test_an_option_that_is_given_twice_is_an_error() -> None:
    with pytest.raises(UsageError, match="given twice"):
        raw_config("--callbacks.ema.decay", "0.9", "--callbacks.ema.decay", "0.8")
    with pytest.raises(UsageError, match="--callbacks names early-stopping twice; keep one"):
        raw_config("--callbacks", "early-stopping,ema,early_stopping")


@pytest.mark.parametrize(
    "below", [["ema", {"name": "early-stopping", "patience": 3}], {"ema": None, "early-stopping": {"patience": 3}}]
)
def test_the_command_line_adds_to_a_file_and_wins(below: Any) -> None:
    merged = merge(
        {"callbacks": below}, raw_config("--callbacks", "best", "--callbacks.early-stopping.min-delta", "0.1")
    )
    assert merged["callbacks"] == {"ema": {}, "early_stopping": {"patience": 3, "min_delta": 0.1}, "best": {}}


def test_none_takes_them_away() -> None:
    assert merge({"callbacks": ["ema"]}, raw_config("--callbacks", "none")) == {"callbacks": None}


def test_a_list_that_names_one_twice_is_left_for_the_error() -> None:
    assert merge({}, {"callbacks": ["ema", "ema"]}) == {"callbacks": ["ema", "ema"]}


QUERIES = {"encoders": {"clip": {"projector": {"name": "resampler", "queries": 4}}}}


@pytest.mark.parametrize("turned", [False, True])
def test_a_word_that_has_options_names_a_part_in_any_order(turned: bool) -> None:
    words = [("--encoders.clip.projector", "resampler"), ("--encoders.clip.projector.queries", "4")]
    assert raw_config(*(word for pair in words[:: -1 if turned else 1] for word in pair)) == QUERIES
    with pytest.raises(UsageError, match=r"--encoders\.clip\.projector is given twice"):
        raw_config(*(word for pair in words for word in pair), "--encoders.clip.projector", "mlp")
    with pytest.raises(UsageError, match=r"--train\.steps\.most reaches into 'steps', which is already given as 4"):
        raw_config("--train.steps", "4", "--train.steps.most", "5")
    with pytest.raises(UsageError, match="reaches into 'system'"):
        raw_config("--data.system", "Answer", "--data.system.more", "5")


@pytest.mark.parametrize(
    ("below", "word", "expected"),
    [
        ("resampler", "--encoders.clip.projector.queries=4", {"name": "resampler", "queries": 4}),
        (
            {"name": "resampler", "depth": 2, "queries": 9},
            "--encoders.clip.projector.queries=4",
            {"name": "resampler", "depth": 2, "queries": 4},
        ),
        ({"name": "mlp", "depth": 2}, "--encoders.clip.projector=mlp", {"name": "mlp", "depth": 2}),
        ({"name": "mlp", "depth": 2}, "--encoders.clip.projector=linear", "linear"),
        ("mlp", "--encoders.clip.projector=linear", "linear"),
    ],
)
def test_options_of_a_part_are_laid_over_those_of_a_file_while_its_name_stays(
    below: Any, word: str, expected: Any
) -> None:
    merged = merge(
        {"encoders": {"clip": {"projector": below, "weights": "w"}}}, raw_config("--encoders", "clip", word), EVERY
    )
    assert merged["encoders"] == {"clip": {"projector": expected, "weights": "w"}}
