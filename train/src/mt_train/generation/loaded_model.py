"""A model to generate with."""

from __future__ import annotations

from dataclasses import dataclass

from mt_core.nn import TrainModel
from mt_core.protocols import Template, Tokenizer
from mt_train.generation.forward import ReadMedia


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, ready to run. ``load_run`` and ``load_adapters`` return it, and ``generate`` takes it."""

    model: TrainModel
    """A ``torch.nn.Module`` in evaluation mode, on the GPU where there is one. ``model(batch)`` gives hidden states before the head,
    ``[B, T, D]`` for B rows of T tokens and the model's width D; its parameters have the names of the checkpoint."""
    tokenizer: Tokenizer
    """The run's: ``encode(text)`` gives ids, ``decode(ids)`` a text; ``bos_id``, ``eos_id`` and ``pad_id`` are ids or ``None``."""
    max_seq_len: int
    """Prompt and new tokens together are at most so many (tokens)."""
    eos_ids: tuple[int, ...] = ()
    """A text ends after any of these ids, which are in no ``Generation``."""
    template: Template | None = None
    """Template of the run, which writes conversations down; ``None`` is the tokenizer's own."""
    read_media: ReadMedia | None = None
    """Gives a batch on the host the inputs of the model's encoders; ``None`` where it has none."""
    media_kinds: frozenset[str] = frozenset()
    """Kinds of media that its encoders read, such as ``image``, which ``<image>`` stands for in a prompt."""
    vocabulary: int | None = None
    """Rows of the embedding: ids are below, though the tokenizer may have a token for media above; ``None`` where nobody says."""
