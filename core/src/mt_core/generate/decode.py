"""Tokens one at a time, with a cache, and text as soon as its characters are whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Generator, Tensor

from mt_core.generate.sampling import SamplingRules, choose
from mt_core.nn import Batch, KVCache, TrainModel
from mt_core.protocols import Tokenizer

REPLACEMENT = "\ufffd"
"""What a tokenizer decodes an incomplete character to."""


@torch.inference_mode()
def generate(
    model: TrainModel,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    rules: SamplingRules,
    eos_id: int | None = None,
    generator: Generator | None = None,
) -> Iterator[int]:
    """New tokens after ``ids``: the prompt in one forward, then one token at a time. Ends after ``eos_id``, unyielded."""
    model.eval()
    device = next(model.parameters()).device
    generator = generator or torch.Generator(device).manual_seed(0)
    cache = KVCache()
    given = list(ids)
    for _ in range(max_new_tokens):
        hidden_1TD = model(_batch(given, cache.length, device), cache)
        token = choose(model.head(hidden_1TD[0, -1:])[0], rules, generator)
        if token == eos_id:
            return
        yield token
        given = [token]


def _batch(ids: Sequence[int], start: int, device: torch.device) -> Batch:
    ids_1T = torch.tensor([list(ids)], device=device)
    zeros_1T = torch.zeros_like(ids_1T)
    positions_1T: Tensor = torch.arange(start, start + len(ids), device=device)[None]
    return Batch(ids_1T, zeros_1T, positions_1T, zeros_1T)


def stream_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """The text of the tokens, piece by piece; a character that is not whole yet waits for the rest of it."""
    seen: list[int] = []
    shown = ""
    for token in tokens:
        seen.append(token)
        text = tokenizer.decode(seen)
        if not text.endswith(REPLACEMENT) and len(text) > len(shown):
            yield text[len(shown) :]
            shown = text
    rest = tokenizer.decode(seen)[len(shown) :] if seen else ""
    if rest:
        yield rest
