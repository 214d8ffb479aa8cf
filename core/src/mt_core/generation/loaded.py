"""A model to generate with."""

from __future__ import annotations

from dataclasses import dataclass

from mt_core.nn import TrainModel
from mt_core.protocols import Template, Tokenizer


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, ready to run.

    A text ends after any of ``eos_ids``; prompt and new tokens together are at most ``max_seq_len`` tokens. Conversations are written
    down by ``template``, the run's; ``None`` is the tokenizer's own.
    """

    model: TrainModel
    tokenizer: Tokenizer
    max_seq_len: int
    eos_ids: tuple[int, ...] = ()
    template: Template | None = None
