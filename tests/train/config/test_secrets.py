"""Secrets in a config are named before a run starts, and hidden where the config is shown."""

from __future__ import annotations

from mt_train.config.secrets import redact_config, secret_keys

TOKEN = "hf_" + "aB3" * 10


def test_keys_that_hold_secrets_are_named() -> None:
    raw = {"a": {"b": TOKEN, "c": "fine"}, "d": [{"e": f"x {TOKEN}"}], "token": 5}
    assert list(secret_keys(raw)) == ["a.b", "d.0.e"]


def test_a_config_for_other_eyes_hides_texts_by_their_shape_and_values_by_their_name() -> None:
    raw = {"callbacks": [{"name": "x", "api_key": "short1A"}], "note": f"see {TOKEN}", "max_tokens": 512}
    assert redact_config(raw) == {
        "callbacks": [{"name": "x", "api_key": "•••"}],
        "note": "see •••",
        "max_tokens": 512,
    }
