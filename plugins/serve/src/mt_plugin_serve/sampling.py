"""Fields that say how a text is chosen and where it ends, in both requests alike.

Those of OpenAI (https://platform.openai.com/docs/api-reference/chat/create), and beside them rules of ``mt-generate`` under their names.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mt_core.generation import GenerationConfig, SamplingRules, find_faults

from .errors import ApiError
from .fields import Fields, flag, mapping, number, only, show, texts, whole

MOST_CHOICES = 128
"""``n``, as at OpenAI."""
MOST_STOPS = 64
MOST_TOKENS = 10**7
MOST_BIASES = 4096
LEAST_TEMPERATURE = 0.001
"""Below it logits overflow; 0 is no division."""
MOST_ALLOWED = 10_000
"""Texts of ``choices``."""


@dataclass(frozen=True)
class Sampling:
    """How texts are chosen. ``config`` has the bound of tokens, which is at least 1."""

    config: GenerationConfig
    n: int = 1
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Streaming:
    """Whether the answer comes in pieces, and whether the last one says how many tokens it took."""

    on: bool = False
    usage: bool = False


REFUSED = {
    "user": "no users are told apart here",
    "safety_identifier": "no users are told apart here",
    "metadata": "nothing is stored",
    "prompt_cache_key": "prompts are not kept after their answer",
    "prompt_cache_options": "prompts are not kept after their answer",
    "prompt_cache_retention": "prompts are not kept after their answer",
}
"""Fields of both requests that would have no effect."""


def read_sampling(fields: Fields, vocabulary: int, most: int) -> Sampling:
    """Return how texts are chosen; ``most`` are the new tokens of each. Raises ``ApiError`` in the names of the request's fields."""
    fields.refuse(REFUSED)
    n = fields.take("n", whole(1, MOST_CHOICES), 1)
    bias = fields.take("logit_bias", lambda value: read_bias(mapping(value), vocabulary), ())
    stop = fields.take("stop", texts(MOST_STOPS), ())
    choices = fields.take("choices", texts(MOST_ALLOWED), ())
    # without one every request draws anew
    seed = fields.take("seed", whole(-(2**63), 2**63 - 1), secrets.randbits(63))
    rules = _read_rules(fields)
    own: dict[str, Any] = {"max_new_tokens": most, "stop": stop, "choices": choices, "seed": seed}
    if faults := find_faults({**rules, **own}, lambda name: name_of_most(fields) if name == "max_new_tokens" else name):
        raise ApiError("; ".join(faults), field=_find_named(faults[0], {**rules, "stop": 0, "choices": 0}))
    return Sampling(GenerationConfig(rules=SamplingRules(**rules), **own), n, bias)


def name_of_most(fields: Fields) -> str:
    """Return the field that bounds the new tokens of this request, which has one of two names."""
    return "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"


def _temperature(value: Any) -> float:
    """A temperature; 0 takes the likeliest token."""
    found = number(0, 1000)(value)
    if 0 < found < LEAST_TEMPERATURE:
        raise ValueError(f"has to be 0, for the likeliest token, or at least {LEAST_TEMPERATURE:g}; got {show(value)}")
    return found


def _read_rules(fields: Fields) -> dict[str, Any]:
    temperature = fields.take("temperature", _temperature, 1.0)
    drawing = {
        "top_p": fields.take("top_p", number(0, 1), 1.0),
        "top_k": fields.take("top_k", whole(1, MOST_TOKENS), None),
        "min_p": fields.take("min_p", number(0, 1), None),
        "typical_p": fields.take("typical_p", number(0, 1), None),
    }
    rules = {
        "frequency_penalty": fields.take("frequency_penalty", number(-2, 2), 0.0),
        "presence_penalty": fields.take("presence_penalty", number(-2, 2), 0.0),
        "repetition_penalty": fields.take("repetition_penalty", number(0, 1000), 1.0),
        "no_repeat_ngram": fields.take("no_repeat_ngram", whole(1, MOST_TOKENS), None),
        "min_new_tokens": fields.take("min_new_tokens", whole(0, MOST_TOKENS), 0),
    }
    if temperature == 0:  # the likeliest token, which each of the rules for drawing keeps
        return {**rules, "greedy": True}
    return {
        **rules,
        **drawing,
        "top_p": None if drawing["top_p"] == 1 else drawing["top_p"],
        "temperature": temperature,
    }


def _find_named(message: str, names: Mapping[str, Any]) -> str | None:
    """Return the first of these fields that a message names."""
    return next((name for name in names if name in message), None)


def read_bias(value: Mapping[str, Any], vocabulary: int) -> tuple[tuple[int, float], ...]:
    """Return token and bias. Raises ``ValueError``."""
    if len(value) > MOST_BIASES:
        raise ValueError(f"has {len(value):,} tokens, and takes at most {MOST_BIASES:,}")
    found = []
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 12 and int(token) < vocabulary):
            raise ValueError(f"has {show(token)}, which is no id of the {vocabulary:,} tokens")
        try:
            found.append((int(token), number(-100, 100)(bias)))
        except ValueError as error:
            raise ValueError(f"of token {token} {error}") from error
    return tuple(found)


def read_streaming(fields: Fields) -> Streaming:
    """Return whether the answer comes in pieces. Raises ``ApiError``."""
    on = fields.take("stream", flag, False)
    if "stream_options" in fields and not on:
        raise ApiError("stream_options belongs to stream: true; leave it out", field="stream_options")
    raw: Mapping[str, Any] = fields.take("stream_options", mapping, {})
    options = Fields(raw)
    try:
        usage = options.take("include_usage", flag, False)
        options.take(
            "include_obfuscation", only(False, why="nothing is put in front of tokens to hide their length"), None
        )
        options.close()
    except ApiError as error:
        raise ApiError(f"stream_options: {error}", field=f"stream_options.{error.field}", code=error.code) from error
    return Streaming(on, usage)
