"""Tokens after prompts, several prompts at once, each as if it were alone.

Shapes: B rows, T tokens of the longest row, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor

from mt_core.nn import Batch, KVCache, TrainModel
from mt_train.generation.choices import Choices
from mt_train.generation.config import SamplingRules
from mt_train.generation.history import History
from mt_train.generation.sampling import choose

Finish = Literal["eos", "stop", "length", "context"]


def _goes_on(token: int) -> bool:
    return False


@dataclass
class Continuation:
    """A prompt and what has come after it. ``stops`` is told each new token, and says whether it is the last one."""

    prompt: Sequence[int]
    most: int
    generator: Generator = field(default_factory=Generator)
    stops: Callable[[int], bool] = _goes_on
    new: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def take(self, token: int, eos_ids: Sequence[int]) -> None:
        """One more token; the end token is not kept."""
        if token in eos_ids:
            self.finish = "eos"
            return
        self.new.append(token)
        if self.stops(token):
            self.finish = "stop"
        elif len(self.new) >= self.most:
            self.finish = "length"


@torch.inference_mode()
def decode(
    model: TrainModel,
    rows: Sequence[Continuation],
    *,
    rules: SamplingRules,
    eos_ids: Sequence[int] = (),
    choices: Choices | None = None,
) -> None:
    """Continue every row until it is finished. A row that is finished leaves the batch; the others do not notice."""
    model.eval()
    running = list(rows)
    logits_BV, cache = prefill(model, [row.prompt for row in running])
    while True:
        history = History(
            prompts=[row.prompt for row in running],
            new=[row.new for row in running],
            eos_ids=eos_ids,
            allowed=None if choices is None else [choices.allowed_tokens(row.new) for row in running],
        )
        tokens = choose(logits_BV, history, rules, [row.generator for row in running])
        for row, token in zip(running, tokens, strict=True):
            row.take(token, eos_ids)
        kept = [index for index, row in enumerate(running) if row.finish is None]
        if not kept:
            return
        if len(kept) < len(running):
            cache.select(torch.tensor(kept, device=logits_BV.device))
            running, tokens = [running[index] for index in kept], [tokens[index] for index in kept]
        logits_BV = advance(model, tokens, [len(row.prompt) + len(row.new) - 1 for row in running], cache)


def prefill(model: TrainModel, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, KVCache]:
    """(B, V) logits after each prompt, and the cache that holds them; shorter prompts are padded on the left."""
    device = next(model.parameters()).device
    longest = max(len(prompt) for prompt in prompts)
    padding = [longest - len(prompt) for prompt in prompts]
    ids_BT = torch.tensor([[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)])
    padding_B = torch.tensor(padding)
    positions_BT = (torch.arange(longest) - padding_B[:, None]).clamp(min=0)
    cache = KVCache(padding_B.to(device) if any(padding) else None)
    return _logits(model, ids_BT.to(device), positions_BT.to(device), cache), cache


def advance(model: TrainModel, tokens: Sequence[int], positions: Sequence[int], cache: KVCache) -> Tensor:
    """(B, V) logits after one more token in each row."""
    device = next(model.parameters()).device
    ids_B1 = torch.tensor(tokens, device=device)[:, None]
    return _logits(model, ids_B1, torch.tensor(positions, device=device)[:, None], cache)


def _logits(model: TrainModel, ids_BT: Tensor, positions_BT: Tensor, cache: KVCache) -> Tensor:
    zeros_BT = torch.zeros_like(ids_BT)
    hidden_BTD = model(Batch(ids_BT, zeros_BT, positions_BT, zeros_BT), cache)
    logits_BV: Tensor = model.head(hidden_BTD[:, -1])
    return logits_BV
