"""Log-probabilities of tokens, as both answers of OpenAI's API show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mt_core import Tokenizer
from mt_train.generation import TokenScore

LOWEST = -9999.0
"""OpenAI's log-probability of a token that cannot be; JSON has no infinity."""
_INCOMPLETE = "\ufffd"


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a token by itself; ``token_id:N`` for one that has none, or is only a part of a character."""
    text = tokenizer.decode([token])
    return f"token_id:{token}" if not text or _INCOMPLETE in text else text


def chat_scores(tokenizer: Tokenizer, scores: Sequence[TokenScore]) -> dict[str, Any]:
    """Return ``logprobs`` of a choice of a chat."""
    return {
        "content": [
            {
                **_entry(tokenizer, score.token, score.logprob),
                "top_logprobs": [_entry(tokenizer, token, logprob) for token, logprob in score.top],
            }
            for score in scores
        ],
        "refusal": None,
    }


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    text = token_text(tokenizer, token)
    is_text = bool(tokenizer.decode([token])) and not text.startswith("token_id:")
    return {"token": text, "logprob": max(logprob, LOWEST), "bytes": list(text.encode()) if is_text else None}


def completion_scores(
    tokenizer: Tokenizer, scores: Sequence[TokenScore | int], offset: int
) -> tuple[dict[str, list[Any]], int]:
    """Return ``logprobs`` of a choice of a completion, of tokens from the character ``offset`` on, and where the text goes on.

    A token without a score is the first one of a prompt.
    """
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for score in scores:
        token = score if isinstance(score, int) else score.token
        found["tokens"].append(token_text(tokenizer, token))
        found["text_offset"].append(offset)
        offset += len(tokenizer.decode([token]))
        if isinstance(score, int):
            found["token_logprobs"].append(None)
            found["top_logprobs"].append(None)
            continue
        found["token_logprobs"].append(max(score.logprob, LOWEST))
        found["top_logprobs"].append(_by_text(tokenizer, [(token, score.logprob), *score.top]))
    return found, offset


def _by_text(tokenizer: Tokenizer, likeliest: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Text of a token → log-probability; of two tokens with one text the second is named by its id."""
    named: dict[str, tuple[int, float]] = {}
    for token, logprob in likeliest:
        text = token_text(tokenizer, token)
        if text in named and named[text][0] != token:
            text = f"token_id:{token}"
        named[text] = (token, max(logprob, LOWEST))
    return {text: logprob for text, (_, logprob) in named.items()}
