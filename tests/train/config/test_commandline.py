"""What people type, and what is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_core.errors import UsageError
from mt_train.config.commandline import parse_value

PATTERNS = ["*.jsonl", "*embed*", "*", "*.q_proj", "data/*.jsonl"]
TEXTS = [
    "Sentiment: {sentence}",
    "Item #5",
    "### Question",
    "2026-01-01",
    "@data/x",
    "&a",
    "!x",
    "%y",
    "> z",
    "- a",
    "a: b: c",
]


@pytest.mark.parametrize("text", [*PATTERNS, *TEXTS])
def test_text_is_what_it_is_whatever_yaml_makes_of_it(text: str) -> None:
    assert parse_value(text, "dataset.path") == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("4.5", 4.5),
        ("1e-3", "1e-3"),
        ("true", True),
        ("null", None),
        ("none", None),
        ("'4'", "4"),
        ('"a: b"', "a: b"),
        ("[a, 2]", ["a", 2]),
        ("{prompt: question}", {"prompt": "question"}),
        ("[*.q_proj, '*x', *]", ["*.q_proj", "*x", "*"]),
        ("{*.q_proj: 4, *: 2}", {"*.q_proj": 4, "*": 2}),
    ],
)
def test_numbers_switches_lists_and_mappings_are_yaml(text: str, value: Any) -> None:
    assert parse_value(text, "adapter.targets") == value


@pytest.mark.parametrize("text", ["{a: ", "[a", "'a", "{a: !!python/name:os.system x}"])
def test_what_begins_like_a_structure_and_is_none_is_told(text: str) -> None:
    with pytest.raises(UsageError, match=r"--data\.columns: cannot read .* as YAML .*quote the value"):
        parse_value(text, "data.columns")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(lambda text: text[0] not in "{[\"'"))
def test_no_text_is_lost_or_changed_in_silence(text: str) -> None:
    value = parse_value(text, "dataset.prompt")
    assert value == text or value is None or isinstance(value, int | float)
