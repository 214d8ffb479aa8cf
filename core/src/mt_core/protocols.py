"""Protocols of what runs through a training: the records of its steps, and what components build.

Torch is imported for type checkers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from mt_core.errors import DataError
    from mt_core.rows import Encoded, Message, Row

NATS_PER_TOKEN = "nats per token"  # noqa: S105 - no password
"""Unit of a loss that is the mean over trained tokens."""


@dataclass(frozen=True)
class StepRecord:
    """The numbers of one optimizer step, as they are written to ``metrics.jsonl``.

    ``loss`` is in nats per trained token (where it ``counts_tokens``, which is no figure), ``lr`` the base rate
    times the schedule's factor, ``grad_norm`` that of the whole gradient before it is clipped. ``tokens`` counts the tokens
    trained on so far, ``tokens_per_second`` is over this step, ``memory_gib`` is the peak of this process (of the device on a
    GPU), ``data_wait_seconds`` how long the step waited for its rows. ``epoch`` counts passes over the rows (``None`` of a
    stream), ``seconds`` the time of all steps so far, without evaluations and saves. ``metrics`` are of objective, blocks and
    callbacks, ``evaluation`` holds ``eval_*`` values.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    tokens_per_second: float
    memory_gib: float
    data_wait_seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)
    counts_tokens: bool = True
    epoch: float | None = None
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """One flat mapping, in the order of ``metrics.jsonl``."""
        apart = {"metrics", "evaluation", "counts_tokens", *(["epoch"] if self.epoch is None else [])}
        own = {key: value for key, value in self.__dict__.items() if key not in apart}
        return {**own, **self.metrics, **self.evaluation}


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. A special id is ``None`` where the tokenizer has none.

    If ``encode`` reads special tokens that a text spells out, define ``encode_text``, which reads them as text: rows are encoded with
    ``mt_core.text_encoder(tokenizer)``, which chooses the right one. Rows of a stream are read in a thread of their own, so that two may
    ask at once.

    ``begin_ids``, where there is one, are the ids that the tokenizer puts in front of a text; without it that is the begin token,
    where there is one (``mt_core.begin_ids(tokenizer)``).
    """

    size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    chat_template: str | None

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone, without special tokens."""
        ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and for each the (start, end) characters of ``text`` that it came from."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens give no text, an incomplete character gives U+FFFD."""
        ...


@runtime_checkable
class ManyTexts(Protocol):
    """A tokenizer that is faster with many texts at once."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return what ``encode_text`` gives for each, where the tokenizer has that, else ``encode``."""
        ...


@runtime_checkable
class ManyOffsets(Protocol):
    """A tokenizer that is faster with many texts at once if offsets are needed."""

    def encode_many_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], Sequence[tuple[int, int]]]]:
        """Return what ``encode_with_offsets`` gives for each. Offsets may be looked up only when they are asked for."""
        ...


class Template(Protocol):
    """Encodes a conversation: its ids, and which of them are trained on (``data.template``, ``data.train_on``).

    A turn of the assistant ends with one of ``stop_ids``, or with the text ``stop_text`` if that is not a single token.
    ``additions`` are the keys that put something into conversations (``data.system`` …), for objectives that have no prompt.
    """

    additions: tuple[str, ...]

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def stop_text(self) -> str | None: ...

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """Return the ids of the whole conversation. Raises ``DataError`` that names the turn which does not fit the template."""
        ...

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids up to the beginning of the assistant's answer. Raises ``DataError`` as ``encode`` does."""
        ...


@runtime_checkable
class ManyConversations(Protocol):
    """A template that is faster with many conversations at once."""

    def encode_many(self, conversations: Sequence[Sequence[Message]]) -> list[Encoded]:
        """Return what ``Template.encode`` gives for each. Raises ``DataError`` where it would for one of them."""
        ...


@runtime_checkable
class Dataset(Protocol):
    """A map-style source: the core permutes, splits and shards it. One of several sources may have ``sources()``: (name, rows) of
    each, in the order of the indices, for row statistics."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """The row at ``index``; raises ``DataError`` with file and line when it is malformed."""
        ...


@runtime_checkable
class Repeating(Protocol):
    """A dataset that contains some rows several times; the core holds out all copies of a row, or none."""

    def originals(self) -> Sequence[int]:
        """Return for each index the lowest one with the same row."""
        ...


@runtime_checkable
class Stream(Protocol):
    """A source without random access: it yields rows in its own order, each with a unique id; the core shuffles them in a buffer."""

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        """Yield the rows of an epoch from its beginning, or from the state that was loaded just before.

        For an unusable row, yield the ``DataError`` that says why, so that later rows are still read.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last row that was yielded, as JSON; empty if the source cannot continue from there."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next call of ``rows`` continue from this state."""
        ...


@runtime_checkable
class GradientTransform(Protocol):
    """A rule that turns whole gradients into directions, and an optimizer that applies them; it runs on every layout.

    ``optimizer`` must be elementwise, since ZeRO gives it flat pieces. Its groups with ``transformed`` true get directions as gradients,
    the others their own gradients.
    """

    optimizer: Optimizer

    def transform(self, name: str, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the direction of the update for a rate of 1, in the gradient's shape.

        ``gradient`` is that of the whole optimizer step in fp32, clipped, in the parameter's own shape; it may be used up.
        ``state`` belongs to this parameter, starts empty and is saved: tensors only. Every call for a parameter comes on one
        rank, so there must be no other state.
        """
        ...


Schedule = Callable[[int], float]
"""Learning rate of the k-th update (0-based): a pure function."""

TaskPrint = Callable[[Sequence[StepRecord]], str]
"""The console line of a step, from the records since the last line."""
