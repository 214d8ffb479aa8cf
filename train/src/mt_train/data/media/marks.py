"""Media parts of rows of every documented form, each a mark in a text and a ``MediaPart`` beside it.

A part is a content part (``{"type": "image", "path": …}``) with its content, or without any, or ``<image>`` in a text of a row that has
the field ``images`` (or ``image``): the latter two take the next item of that field. So is what a pattern of the run finds in a text.
"Next" goes by the places in the conversation: system, history, prompt, messages, response, and the chosen answer before the rejected
one. Turns with which an answer of a pair repeats what it answers, and with which both answers begin, have the same parts each time; so
has the field ``text`` beside a conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from mt_core.data.turns import ROLES
from mt_core.errors import show_value
from mt_core.rows import MEDIA_MARK, MediaPart, Row
from mt_train.data.media.fields import field_of
from mt_train.data.media.rules import MARK, SHAPE, UNREAD, MediaError, MediaRules
from mt_train.data.media.values import build_part, keys_of
from mt_train.data.texts import texts_in

_PROMPTS = ("system", "history", "instruction", "input", "prompt", "messages", "conversations")
_ANSWERS = ("choices", "response", "output", "preferred_output", "chosen", "non_preferred_output", "rejected")
_ALTERNATIVES = (("text",), (*_PROMPTS, *_ANSWERS))
"""Fields of which a row's sample is made: the text, or the conversation."""

_PREFERRED = {"non_preferred_output": "preferred_output", "rejected": "chosen"}
_SPELLINGS = (("role", "content"), ("from", "value"))
_CALL = "function_call"


def mark_parts(row: Row, rules: MediaRules) -> tuple[Row, int]:
    """Return the row with a mark for each part that is no text, and how many parts there are; the same row where there are none.

    Parts of a turn are its ``media``, those of fields that are texts the row's, as ``mt_core.data.shapes`` has them. The fields that they
    came from are left out. Raises ``MediaError``.
    """
    if any(not text.isascii() and MEDIA_MARK in text for text in texts_in(dict(row))):
        raise MediaError(
            f"{row['id']}: a text has the noncharacter U+FDD5, which stands for no character of any text; remove it",
            MARK,
        )
    marker = _Marker(row, rules)
    changed = marker.mark_fields()
    if not marker.parts:
        return row, 0
    kept = {name: value for name, value in row.items() if name not in marker.consumed}
    return {**kept, **changed, **({"media": tuple(marker.flat)} if marker.flat else {})}, marker.parts


class _Turn(NamedTuple):
    """A turn as the row has it, and what it became."""

    role: Any
    said: Any
    text: Any
    media: tuple[MediaPart, ...]


class _Marker:
    """Marks the parts of one row."""

    def __init__(self, row: Row, rules: MediaRules) -> None:
        self._row, self._rules = row, rules
        self._fields = {
            kind: found for kind, names in rules.fields if (found := field_of(row, kind, names)) is not None
        }
        self._spelled = _pattern(tuple(self._fields)) if self._fields else None
        self._turns: dict[str, list[_Turn]] = {}
        self.flat: list[MediaPart] = []
        self.parts = 0
        """Parts of the text or of the conversation, whichever has more."""

    @property
    def consumed(self) -> frozenset[str]:
        """Names of fields whose items stand in texts now."""
        return frozenset(field.name for field in self._fields.values() if any(field.counts))

    def mark_fields(self) -> dict[str, Any]:
        """Return the fields that are others now. Raises ``MediaError``, also where an item stands nowhere."""
        changed, counts = {}, []
        for names in _ALTERNATIVES:
            self.parts = 0
            for name in names:
                value = self._row.get(name)
                if value is not None and (marked := self._mark_field(name, value)) is not value:
                    changed[name] = marked
            for field in self._fields.values():
                field.begin_again()
            counts.append(self.parts)
        for field in self._fields.values():
            if field.kind in self._rules.kinds and not field.is_matched:
                field.refuse(self._row["id"])
        self.parts = max(counts)
        return changed

    def _mark_field(self, name: str, value: Any) -> Any:
        place = f"{self._row['id']}: field {name!r}"
        if isinstance(value, str):
            if name in ("history", "messages", "conversations"):
                return value
            text, parts = self._mark_text(value, place)
            self.flat += parts
            self._turns[name] = [_Turn("system" if name == "system" else "user", value, text, tuple(parts))]
            return text
        if isinstance(value, Mapping) and isinstance(
            inner := value.get("messages"), list
        ):  # OpenAI's ``input`` of a pair
            marked = self._mark_turns(name, inner, place)
            return value if marked is inner else {**value, "messages": marked}
        if isinstance(value, Mapping):
            marked = self._mark_turns(name, [value], place)
            return value if marked[0] is value else marked[0]
        if not isinstance(value, list):
            return value
        if name == "choices":
            return self._mark_choices(value, place)
        return self._mark_turns(name, self._turns_of_pairs(value) if name == "history" else value, place, value)

    def _mark_choices(self, value: list[Any], place: str) -> list[Any]:
        """Choices beside a response are written out already, in the prompt."""
        if self._row.get("response") is not None or (self._spelled is None and not self._rules.patterns):
            return value
        marked = []
        for number, text in enumerate(value, 1):
            text, parts = self._mark_text(text, f"{place}, choice {number}") if isinstance(text, str) else (text, [])
            self.flat += parts
            marked.append(text)
        return marked

    def _turns_of_pairs(self, value: list[Any]) -> list[Any]:
        """Pairs of a history as turns, which may have media; what is no list of pairs, as it is."""
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            return value
        return [
            {"role": role, "content": said}
            for pair in value
            for role, said in zip(("user", "assistant"), pair, strict=True)
        ]

    def _mark_turns(self, name: str, turns: list[Any], place: str, source: list[Any] | None = None) -> list[Any]:
        """The turns of a field; those of ``source``, which they are made of, where there are no parts in them."""
        if not (
            self._fields or self._rules.patterns or any(map(_has_list, turns))
        ):  # as in most rows: a part needs one of these
            return turns if source is None else source
        repeated = self._repeated(name, turns)
        marked, seen = [], self._turns.setdefault(name, [])
        for number, turn in enumerate(turns, 1):
            spelling = _spelling(turn)
            if spelling is None:
                marked.append(turn)
                continue
            role, said = turn[spelling[0]], turn.get(spelling[1])
            if number <= len(repeated):
                text, media = repeated[number - 1].text, repeated[number - 1].media
            else:
                text, parts = self._mark_content(said, f"{place}, turn {number}")
                media = tuple(parts)
            seen.append(_Turn(_role(role), said, text, media))
            marked.append({**turn, spelling[1]: text, "media": media} if media else turn)
        is_changed = any(new is not old for new, old in zip(marked, turns, strict=True))
        return marked if is_changed else source if source is not None else turns

    def _repeated(self, name: str, turns: Sequence[Any]) -> Sequence[_Turn]:
        """Return the turns already read for an answer that begins with them: those of the prompt, or of the preferred answer."""
        if name not in _ANSWERS or not self._fields:
            return ()
        said = [
            (_role(turn[each[0]]), turn.get(each[1])) if (each := _spelling(turn)) else (None, None) for turn in turns
        ]
        before = [turn for each in _PROMPTS for turn in self._turns.get(each, ())]
        for count in range(min(len(before), len(said)), 0, -1):
            if [turn[:2] for turn in before[-count:]] == said[:count]:
                break
        else:
            count = 0
        preferred = self._turns.get(_PREFERRED.get(name, ""), [])
        common = 0
        while common < min(len(preferred), len(said)) and preferred[common][:2] == said[common]:
            common += 1
        return preferred[:common] if common > count else before[len(before) - count :]

    def _mark_content(self, value: Any, place: str) -> tuple[Any, list[MediaPart]]:
        if isinstance(value, str):
            return self._mark_text(value, place)
        if not isinstance(value, list):
            return value, []
        texts: list[str] = []
        media: list[MediaPart] = []
        for number, part in enumerate(value, 1):
            text, parts = self._mark_part(part, f"{place}, part {number}")
            texts.append(text)
            media += parts
        return "".join(texts) if media else value, media

    def _mark_part(self, part: Any, place: str) -> tuple[str, list[MediaPart]]:
        said = part.get("type") if isinstance(part, Mapping) else None
        if said == "text" and isinstance(part.get("text"), str):
            return self._mark_text(part["text"], place)
        kind = _types(self._rules.known).get(said) if isinstance(said, str) else None
        if kind is None:
            what = (
                f"of type {show_value(said, 60)}"
                if said is not None
                else f"no part of a message: {show_value(part, 60)}"
            )
            raise MediaError(
                f'{place} is {what}; the run reads {self._rules.describe()}. Write {{"type": "text", "text": "…"}}, take it out, or drop'
                " the row.",
                SHAPE,
            )
        self._refuse_unread(kind, place)
        if any(part.get(key) is not None for key in keys_of(kind)):
            self.parts += 1
            return MEDIA_MARK, [build_part(kind, part, self._rules, place)]
        if kind not in self._fields:
            raise MediaError(
                f"{place} is of type {said!r} and has no content, nor has the row a field {kind + 's'!r} or {kind!r}. Add one of them,"
                " or drop the row.",
                SHAPE,
            )
        return MEDIA_MARK, self._take(kind)

    def _mark_text(self, text: str, place: str) -> tuple[str, list[MediaPart]]:
        pieces, parts, end = list[str](), list[MediaPart](), 0
        for found, kind in sorted(self._matches(text), key=lambda match: (match[0].start(), -match[0].end())):
            if found.start() < end or found.start() == found.end():  # in one that began before it, or of no letter
                continue
            pieces += text[end : found.start()], MEDIA_MARK
            end = found.end()
            if kind:
                value = found[1] if found.re.groups else found[0]
                parts.append(build_part(kind, value, self._rules, f"{place}, letter {found.start() + 1}"))
                self.parts += 1
            else:
                self._refuse_unread(found[1], place)
                parts += self._take(found[1])
        return ("".join([*pieces, text[end:]]), parts) if pieces else (text, parts)

    def _matches(self, text: str) -> Iterator[tuple[re.Match[str], str]]:
        """Yield places of items in a text, and what a pattern has found with its kind."""
        if self._spelled is not None and "<" in text:
            yield from ((found, "") for found in self._spelled.finditer(text))
        for kind, pattern in self._rules.patterns.items():
            yield from ((found, kind) for found in pattern.finditer(text))

    def _take(self, kind: str) -> list[MediaPart]:
        """The next item of the kind's field; none where there are no more, which is refused when all are counted."""
        field = self._fields[kind]
        field.taken += 1
        if field.taken > len(field.items):
            return []
        self.parts += 1
        place = f"{self._row['id']}: field {field.name!r}, number {field.taken}"
        return [build_part(kind, field.items[field.taken - 1], self._rules, place)]

    def _refuse_unread(self, kind: str, place: str) -> None:
        if kind not in self._rules.kinds:
            raise MediaError(
                f"{place} has a part of the kind {kind!r}, and this run reads {self._rules.describe()}. Name an encoder that reads {kind}"
                " (--encoders), or drop the row.",
                UNREAD,
            )


@lru_cache(maxsize=64)
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"<({'|'.join(map(re.escape, kinds))})>")


@lru_cache(maxsize=16)
def _types(kinds: tuple[str, ...]) -> Mapping[str, str]:
    """Types of content parts → kinds: ``image``, OpenAI's ``image_url`` and ``input_image``."""
    return {name: kind for kind in kinds for name in (kind, f"{kind}_url", f"input_{kind}")}


def _spelling(turn: Any) -> tuple[str, str] | None:
    """Keys of a turn's role and text; none for what is no turn, or nothing but a call."""
    if not isinstance(turn, Mapping):
        return None
    found = next((each for each in _SPELLINGS if turn.get(each[0]) is not None), None)
    return None if found is None or turn[found[0]] == _CALL else found


def _has_list(turn: Any) -> bool:
    return isinstance(turn, Mapping) and any(isinstance(turn.get(key), list) for _, key in _SPELLINGS)


def _role(role: Any) -> Any:
    return ROLES.get(role, role) if isinstance(role, str) else role
