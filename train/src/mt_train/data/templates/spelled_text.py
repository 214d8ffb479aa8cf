"""Text in which people spelled special tokens, for templates that cut it, search it and put it together.

Each character of such a spelling is stored as a character of its own that no text may have (a lone surrogate, which UTF-8 cannot
write), so that what Jinja, ``json`` and ``str`` copy stays known to be a person's. A template sees the text as it was written: whatever
looks at it (``==``, ``in``, ``startswith``, ``split`` …) looks at the characters that the stored ones stand for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any

from mt_core.errors import DataError

_FIRST, _LAST = 0xD800, 0xDFFF
SURROGATES = re.compile("[\ud800-\udfff]")
"""Characters that no text may have, so that stored spellings can consist of them."""

_stored: dict[int, str] = {}
_shown: dict[int, str] = {}
_NEW = Lock()


def store(text: str) -> str:
    """The characters that stand for those of a text."""
    for char in text:
        if ord(char) not in _stored:
            _add(char)
    return text.translate(_stored)


def show(text: str) -> str:
    """The characters that a text has or stands for, as many."""
    return text if str.isascii(text) else str.translate(text, _shown)  # of a SpelledText too, as it is stored


def _add(char: str) -> None:
    with _NEW:
        code = _FIRST + len(_shown)
        if code > _LAST:
            raise DataError(
                f"the special tokens that rows spell have more than {_LAST - _FIRST + 1} different characters; "
                "take those that are no marks of the template from the tokenizer's special tokens"
            )
        _shown[code] = char
        _stored.setdefault(ord(char), chr(code))


def spell_out(text: str) -> str:
    """The text as a ``SpelledText`` where it has stored characters, and itself otherwise."""
    is_known = str.isascii(text) or isinstance(text, SpelledText) or not SURROGATES.search(text)
    return text if is_known else SpelledText(text)


def _look_method(name: str) -> Callable[..., Any]:
    """A method that only looks at the text, and at others as they were written."""
    method = getattr(str, name)

    def look(self: SpelledText, *args: Any) -> Any:
        return method(self._text, *map(_as_written, args))

    return look


def _as_written(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_written, value))
    return show(value) if isinstance(value, str) else value


def _cut_method(name: str) -> Callable[..., Any]:
    """A method that gives a part of the text, or parts one after another."""
    method = getattr(str, name)

    def cut(self: SpelledText, *args: Any, **named: Any) -> Any:
        found = method(self._text, *map(_as_written, args), **{key: _as_written(value) for key, value in named.items()})
        sep = named.get("sep", args[0] if args else None)
        gap = len(sep) if name in ("split", "rsplit") and sep is not None else 0
        if isinstance(found, str):
            return self._part(self._text.rfind(found) if name in _AT_THE_END else self._text.find(found), len(found))
        return type(found)(self._parts(found, gap))

    return cut


_AT_THE_END = ("lstrip", "removeprefix")
"""Methods whose result ends where the text ends."""


def _copy_method(name: str) -> Callable[..., Any]:
    """A method that copies the stored characters as they are."""
    method = getattr(str, name)

    def copy(self: SpelledText, *args: Any, **named: Any) -> Any:
        found = method(self, *args, **named)
        return spell_out(found) if isinstance(found, str) else found

    return copy


def _change_method(name: str) -> Callable[..., Any]:
    """A method that changes letters; those of a spelling too, and they stay a person's."""
    method = getattr(str, name)

    def change(self: SpelledText, *args: Any) -> Any:
        changed = method(self._text, *args)
        if len(changed) != len(self):  # a letter that becomes two
            each = ((char, method(show(char), *args)) for char in str.__iter__(self))
            return spell_out("".join(store(new) if SURROGATES.match(char) else new for char, new in each))
        pairs = zip(changed, str.__str__(self), strict=True)
        return spell_out("".join(store(char) if SURROGATES.match(own) else char for char, own in pairs))

    return change


class SpelledText(str):
    """A text with stored characters, which behaves like the text that was written."""

    _text: str

    def __new__(cls, text: str) -> SpelledText:
        made = super().__new__(cls, text)
        made._text = show(str.__str__(text))
        return made

    def _part(self, start: int, length: int) -> str:
        return spell_out(str.__getitem__(self, slice(start, start + length)))

    def _parts(self, found: Iterable[str], gap: int) -> Iterator[str]:
        at = 0
        for part in found:
            at = self._text.index(part, at)
            yield self._part(at, len(part))
            at += len(part) + gap

    def __hash__(self) -> int:
        return hash(self._text)

    def __iter__(self) -> Iterator[str]:
        return map(spell_out, super().__iter__())

    def __radd__(self, other: Any) -> Any:
        return spell_out(str.__add__(other, self)) if isinstance(other, str) else NotImplemented

    def replace(self, old: Any, new: Any, count: Any = -1) -> str:
        """See ``str``."""
        if not old:
            return spell_out(str.replace(self, old, new, count))
        return spell_out(str.__str__(new).join(self.split(old, count)))


_LOOK = (
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ count endswith startswith find index rfind rindex isalnum isalpha isascii "
    "isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper encode"
)
_CUT = "strip lstrip rstrip removeprefix removesuffix split rsplit splitlines partition rpartition"
_COPY = "__add__ __mul__ __rmul__ __mod__ __getitem__ __format__ center ljust rjust zfill expandtabs join"
"""``format`` is not among them: the sandbox knows that of ``str`` alone, and guards it."""

_CHANGE = "capitalize casefold lower swapcase title upper"

for _names, _kind in ((_LOOK, _look_method), (_CUT, _cut_method), (_COPY, _copy_method), (_CHANGE, _change_method)):
    for _name in _names.split():
        setattr(SpelledText, _name, _kind(_name))
