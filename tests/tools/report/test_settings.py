"""A page is shown to others: it tells what differs between runs, and no secret."""

from __future__ import annotations

from typing import Any

import pytest

from mt_tools.report.settings import differences, format_value
from mt_train.config.secrets import redact_config


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "hf_token",
        "auth-token",
        "accessToken",
        "secret",
        "client_secret",
        "password",
        "api_key",
        "apiKey",
        "API_KEY",
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(key: str) -> None:
    assert redact_config({"hub": [{key: "very"}, {key: ["very"]}, {key: {"inner": "very"}}]}) == {
        "hub": [{key: "•••"}, {key: "•••"}, {key: "•••"}]
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer", "byte"),
        ("max_tokens", 512),
        ("token", None),
        ("use_token", True),
        ("eos_token_id", 2),
        ("secretary", "x"),
    ],
)
def test_what_only_looks_like_a_secret_is_shown(key: str, value: Any) -> None:
    assert redact_config({key: value}) == {key: value}


def test_a_word_in_an_address_is_hidden() -> None:
    assert redact_config({"path": "https://me:word@host/data"}) == {"path": "https://•••@host/data"}


def test_only_keys_that_differ_are_listed_with_the_value_of_every_run() -> None:
    runs = [
        {"train": {"steps": 3, "seed": 0}, "model": {"name": "llama"}},
        {"train": {"steps": 4, "seed": 0}, "model": {"name": "llama", "rank": None}},
        {"train": {"steps": 4, "seed": 0}, "model": {"name": "llama", "rank": 8}},
    ]
    assert differences(runs) == {"train.steps": ["3", "4", "4"], "model.rank": ["–", "null", "8"]}
    assert differences(runs[:1] * 2) == {}


def test_secrets_that_differ_are_named_and_stay_hidden() -> None:
    assert differences([{"hub": {"token": "a"}}, {"hub": {"token": "b"}}]) == {"hub.token": ["•••", "•••"]}


def test_values_are_written_as_in_a_config() -> None:
    assert [format_value(value) for value in (None, True, "text", "", [1, "a"], 1e-5)] == [
        "null",
        "true",
        "text",
        '""',
        '[1, "a"]',
        "1e-05",
    ]
