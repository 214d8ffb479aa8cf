"""Marks of media among the ids of a conversation become places for what an encoder makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mt_core.errors import DataError
from mt_core.media import Measured, Processor
from mt_core.protocols import ManyConversations, Template
from mt_core.rows import Encoded, Grid, MediaItem, MediaPart, MediaSpan, Message
from mt_train.data.media.rules import MediaError, kind_of
from mt_train.data.templates.days import DatedTemplate
from mt_train.data.templates.notation import MEDIA_ID


@dataclass(frozen=True, kw_only=True)
class MediaSource:
    """An encoder of a run as rows see it: ``tokens`` says how many places an item takes, ``fill`` is the id that stands there.

    ``begin`` and ``end`` are ids around an item; a row may have ``limit`` items.
    """

    name: str
    processor: Processor
    tokens: Callable[[int, Grid | None], int]
    fill: int = 0
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    limit: int | None = None

    def span(self, part: MediaPart, start: int) -> MediaSpan:
        """Return the places of a part from ``start`` on. Raises ``DataError`` for one that cannot be read, with its place."""
        try:
            measured: Measured = self.processor.measure(part)
            tokens = self.tokens(measured.features, measured.grid)
        except DataError as error:
            place = "" if not part.place or str(error).startswith(part.place) else f"{part.place}: "
            raise MediaError(f"{place}{error}", kind_of(error), (part.path,) if part.path else ()) from error
        item = MediaItem(self.name, part.path, part.content, measured.digest)
        return MediaSpan(start, tokens, item, measured.features, measured.grid)


class MediaWriter:
    """Puts places for media into ids, by the kind of each part."""

    def __init__(self, sources: Mapping[str, MediaSource]) -> None:
        """``sources``: kind of part → who reads it."""
        self._sources = dict(sources)

    def write(self, encoded: Encoded, parts: Sequence[MediaPart]) -> Encoded:
        """Return the ids with places for each part where ``MEDIA_ID`` stood, which nothing is trained to give.

        Raises ``DataError`` where marks are not as many as parts, or a row has more items than an encoder's ``limit``.
        """
        marks = encoded.ids.count(MEDIA_ID)
        if marks != len(parts):
            raise DataError(
                f"the row has {len(parts)} parts that are no text, and the template has written {marks} of them; choose one that writes"
                " every turn (--data.template), or leave the parts out of what it drops"
            )
        if not parts:
            return encoded
        self._refuse_too_many(parts)
        ids: list[int] = []
        trained: list[bool] = []
        weights: list[float] | None = None if encoded.weights is None else []
        spans, waiting = list[MediaSpan](), iter(parts)
        for place, token in enumerate(encoded.ids):
            more = [token]
            if token == MEDIA_ID:
                part = next(waiting)
                source = self._source(part)
                span = source.span(part, len(ids) + len(source.begin))
                spans.append(span)
                more = [*source.begin, *[source.fill] * span.tokens, *source.end]
            ids += more
            trained += [encoded.trained[place] and token != MEDIA_ID] * len(more)
            if weights is not None and encoded.weights is not None:
                weights += [1.0 if token == MEDIA_ID else encoded.weights[place]] * len(more)
        return Encoded(ids, trained, weights, tuple(spans))

    def _source(self, part: MediaPart) -> MediaSource:
        if part.kind not in self._sources:
            known = ", ".join(sorted(self._sources)) or "nothing"
            raise DataError(
                f"{part.place or 'a part'} is of kind {part.kind!r}, and the encoders of this run read {known}; name one that reads it"
                " (--encoders), or leave the part out"
            )
        return self._sources[part.kind]

    def _refuse_too_many(self, parts: Sequence[MediaPart]) -> None:
        counts: dict[str, int] = {}
        for part in parts:
            source = self._source(part)
            counts[source.name] = counts.get(source.name, 0) + 1
            if source.limit is not None and counts[source.name] > source.limit:
                raise DataError(
                    f"{part.place or 'a row'} is item {counts[source.name]} of its row, and encoders.{source.name}.limit is"
                    f" {source.limit}; raise it, or shorten the row"
                )


class MediaTemplate:
    """The run's template with places for media: what it wrote marks for is put there."""

    def __init__(self, template: Template, writer: MediaWriter, encode_text: Callable[[str], list[int]]) -> None:
        """``encode_text`` gives the ids of a text that is no conversation, ``MEDIA_ID`` for each mark."""
        self._template, self._writer, self._encode_text = template, writer, encode_text
        self.additions = template.additions

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """See ``Template``."""
        return self._template.stop_ids

    @property
    def stop_text(self) -> str | None:
        """See ``Template``."""
        return self._template.stop_text

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """See ``Template``."""
        return self._writer.write(self._template.encode(messages), _parts_of(messages))

    def encode_many(self, conversations: Sequence[Sequence[Message]]) -> list[Encoded]:
        """See ``ManyConversations``."""
        if not isinstance(self._template, ManyConversations):
            return [self.encode(messages) for messages in conversations]
        encoded = self._template.encode_many(conversations)
        pairs = zip(encoded, conversations, strict=True)
        return [self._writer.write(each, _parts_of(messages)) for each, messages in pairs]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """See ``Template``. Raises ``DataError`` for a conversation with media, which are more than ids."""
        encoded = self.encode_prompt(messages)
        if encoded.media:
            raise DataError(
                f"the conversation has {len(encoded.media)} parts that are no text, and only its ids were asked for; leave the parts out,"
                " or ask with what takes media (encode_prompt)"
            )
        return encoded.ids

    def over(self, template: Template) -> MediaTemplate:
        """Return another template with the same places for media."""
        return MediaTemplate(template, self._writer, self._encode_text)

    def of_today(self) -> MediaTemplate:
        """See ``DatedTemplate``."""
        return self.over(self._template.of_today()) if isinstance(self._template, DatedTemplate) else self

    def encode_prompt(self, messages: Sequence[Message]) -> Encoded:
        """Return the ids up to where the assistant begins to speak, and the media among them; nothing is trained on."""
        ids = self._template.prompt(messages)
        return self._writer.write(Encoded(ids, [False] * len(ids)), _parts_of(messages))

    def encode_text(
        self, text: str, parts: Sequence[MediaPart], *, begin: Sequence[int], end: Sequence[int]
    ) -> Encoded:
        """Return a text with its media, all else of which is trained on, between the ids that begin and end it."""
        ids = [*begin, *self._encode_text(text), *end]
        return self._writer.write(Encoded(ids, [True] * len(ids)), parts)


def _parts_of(messages: Sequence[Message]) -> list[MediaPart]:
    return [part for message in messages for part in message.get("media", ())]
