"""Rows and what becomes of them: conversations, samples, and the columns of many samples.

Numpy is imported for type checkers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import isqrt, prod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Row = Mapping[str, Any]
"""A plain row with an ``id`` (file and line) and the fields of one documented shape, such as ``text``."""


Grid = tuple[int, int, int]
"""Shape of an item's features as times, rows and columns; the product is the number of features."""


@dataclass(frozen=True)
class MediaPart:
    """A media part of a row: an ``image``, a sequence of ``dna`` … (``kind``), and its content or path.

    ``path`` is a file that may be read: whoever makes a part has checked that it lies under the roots of the run. Without it the content
    is here; that of a sequence is its letters, as ASCII. ``place`` (row and field) begins messages, and is no part of what is equal.
    """

    kind: str
    path: str = ""
    content: bytes = b""
    place: str = field(default="", compare=False)


@dataclass(frozen=True)
class MediaItem:
    """An item for the encoder of this name in the run: a file, or the content itself; ``digest`` identifies the content."""

    encoder: str
    path: str = ""
    content: bytes = b""
    digest: bytes = b""


@dataclass(frozen=True)
class MediaSpan:
    """A span of ``tokens`` tokens from ``start`` on, whose hidden states come from an item.

    The encoder makes ``features`` of the item, in rows and columns where it has a ``grid``; a projector makes the tokens of these. The
    ids there have no meaning, and nothing is ever found by them.
    """

    start: int
    tokens: int
    item: MediaItem
    features: int
    grid: Grid | None = None

    @property
    def cells(self) -> Grid | None:
        """Tokens as times, rows and columns, where squares of neighbours in the grid are one token each, or every feature is one."""
        if self.grid is None or not self.tokens:
            return None
        factor = isqrt(self.features // self.tokens)
        cells = self.grid[0], self.grid[1] // max(1, factor), self.grid[2] // max(1, factor)
        return cells if prod(cells) == self.tokens and self.tokens * factor**2 == self.features else None

    def shift(self, tokens: int) -> MediaSpan:
        """Return the same span so many tokens further on, or back where they are below 0."""
        return replace(self, start=self.start + tokens)


def join_media(media: Iterable[Sequence[MediaSpan]], lengths: Iterable[int]) -> tuple[MediaSpan, ...]:
    """Return the media of concatenated texts; ``lengths`` are the tokens of each text."""
    starts = accumulate(lengths, initial=0)
    return tuple(span.shift(start) for spans, start in zip(media, starts, strict=False) for span in spans)


@dataclass(frozen=True)
class Sample:
    """An encoded row: token ids, a mask of the trained ones, and the id of its row (``row_id``).

    A token is trained if ``trained`` is true, and its loss is multiplied by its weight (1 without ``weights``).

    A sample may be an item of several documents that do not see one another, such as the two sides of a pair: ``documents`` are their
    lengths, in the order of ``ids``. It is shuffled, packed and counted as one thing, so that they are always in the same row.
    ``document_values`` are numbers for each document, ``token_values`` for each token, by name. Either all samples of a run have
    ``documents``, or none has, and all have the same names. ``media`` are the images and the like, in the order of their places in ``ids``.
    """

    ids: Sequence[int]
    trained: Sequence[bool]
    row_id: str
    weights: Sequence[float] | None = None
    documents: Sequence[int] = ()
    document_values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    token_values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    media: Sequence[MediaSpan] = ()

    @property
    def spans(self) -> list[slice]:
        """Places of each document; all of them where the sample is one document."""
        ends = list(accumulate(tuple(self.documents) or (len(self.ids),), initial=0))
        return [slice(start, end) for start, end in pairwise(ends)]


@dataclass(frozen=True)
class FlatRows:
    """The samples of several rows as columns: all tokens one after another, and the lengths of their parts.

    ``ids``, ``trained`` and the values are those of ``Sample``. ``lengths`` are the tokens of each document, ``counts`` the documents of
    each row, and ``sizes`` those of each sample, ``None`` where each is one document. ``weights`` are there where a sample has any,
    and 1 for the others. ``media`` have their places in the columns.
    """

    ids: NDArray[np.int64]
    trained: NDArray[np.bool_]
    weights: NDArray[np.float32] | None
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]
    row_ids: Sequence[str]
    sizes: NDArray[np.int64] | None = None
    document_values: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    token_values: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    media: Sequence[MediaSpan] = ()


@runtime_checkable
class HasFlat(Protocol):
    """Rows of samples that are stored as columns, so that an objective can collate them without visiting each sample."""

    def flat(self) -> FlatRows: ...


Message = Mapping[str, Any]
"""One turn: ``role`` (system, user, assistant, tool), ``content``, and optionally ``train`` (bool) and ``weight`` (float above 0).

``raw`` (bool) marks a plain prompt or response, which is no chat unless ``data.template`` says so; ``input`` is the second part
of an Alpaca instruction. ``tool_calls`` are as at OpenAI, with arguments as objects; beside them ``content`` may be ``None``.
``name``, ``tool_call_id`` and ``reasoning_content`` are texts. The first turn has the ``tools`` of the conversation. ``media`` are
the parts (``MediaPart``) that ``MEDIA_MARK`` stands for in ``content``, in their order.
"""

MEDIA_MARK = "\ufdd5"
"""Placeholder of a media part in a text: a noncharacter, which Unicode reserves for such use. A run without encoders has none."""


@dataclass(frozen=True)
class Encoded:
    """Token ids of a conversation, a mask of the trained ones, their weights if turns have any, and its media."""

    ids: list[int]
    trained: list[bool]
    weights: list[float] | None = None
    media: Sequence[MediaSpan] = ()

    def sample(self, row_id: str) -> Sample:
        """Return the sample of a row that is this conversation."""
        return Sample(self.ids, self.trained, row_id, self.weights, media=self.media)


@dataclass(frozen=True)
class Rejected:
    """A row that an objective cannot use, and why."""

    reason: str
    row_id: str
