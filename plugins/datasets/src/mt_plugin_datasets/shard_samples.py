"""Samples of a WebDataset shard as rows. Media are given as content, so that a sample keeps its own where a name stands twice."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt_core import DataError, Row
from mt_core.files import MOST_ROW_BYTES

from .shard_index import content_of, load_index, split_name, stamp_of
from .shard_values import JSON, MEDIA, field_of, is_read, kind_of, read_value, too_large, unpack
from .tar_headers import Member

KEY = "__key__"
"""Field of a row with the name that the members of its sample share, as webdataset calls it."""

_FIELD = re.compile(r"\{([^{}]+)\}")
_NAME = re.compile(r"\w[\w.-]*")
"""Name that can only be meant as a field's; of others those are fields that the sample has."""

_SHOWN = 80


@dataclass(frozen=True)
class SampleForm:
    """Choice of the members of a sample that become a row, and of names for them."""

    endings: tuple[str, ...] = ()
    """Endings of the members that are read; empty for all that are known."""
    text_field: str = "text"
    templates: tuple[tuple[str, str], ...] = ()
    """Field and text with ``{fields}`` of the sample."""

    def takes(self, ending: str) -> bool:
        """Return whether members of an ending are read."""
        return field_of(ending) in self.endings or ending in self.endings if self.endings else is_read(ending)


class Shard:
    """A shard that is open, until nobody has it any more. Processes that are forked may share it: reading moves no place in the file."""

    def __init__(self, path: Path) -> None:
        stamp = stamp_of(path)
        self.path, self.index = path, load_index(path)
        try:
            self._handle = os.open(content_of(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(f"{path.absolute()} cannot be read: {error.strerror}. Put it back") from error
        weakref.finalize(self, os.close, self._handle)
        self._version = self._now()
        if stamp_of(path) != stamp:
            raise _changed(path)

    def row(self, number: int, form: SampleForm) -> Row:
        """One sample; sample 12 has the id ``shard:12``. Raises ``DataError`` with its place and member for one that cannot be used."""
        place, left = f"{self.path}:{number + 1}", MOST_ROW_BYTES
        row, seen = dict[str, Any](), set[str]()
        for member in self.index.members(number):
            key, ending = split_name(member.name)
            if ending in seen:
                raise DataError(
                    f"{place}, {member.name}: two members of this sample end in .{ending}. Give each sample a name of its own"
                )
            seen.add(ending)
            row[KEY] = key
            if not form.takes(ending):
                continue
            where = f"{place}, {member.name}"
            if (left := left - member.size) < 0:
                raise too_large(where)
            content = unpack(ending, self._content(member, where), where)
            if (left := left - max(0, len(content) - member.size)) < 0:
                raise too_large(where)
            _add_member(row, ending, content, where, form)
        fields = {name: _render(template, row, place, name) for name, template in form.templates}
        return {**row, **fields, "id": place}

    def _content(self, member: Member, place: str) -> bytes:
        if member.kind:
            raise DataError(
                f"{place}: it is {member.kind}, whose content is not in its place in the shard. Write the shard with plain"
                " files: tar --dereference --hard-dereference, without --sparse"
            )
        content = os.pread(self._handle, member.size, member.start)
        while 0 < len(content) < member.size:  # one call gives 2 GiB at most
            more = os.pread(self._handle, member.size - len(content), member.start + len(content))
            content = content + more if more else b""
        if len(content) != member.size or self._now() != self._version:
            raise _changed(self.path)
        return content

    def _now(self) -> tuple[int, int]:
        now = os.fstat(self._handle)
        return now.st_size, now.st_mtime_ns


def _add_member(row: dict[str, Any], ending: str, content: bytes, place: str, form: SampleForm) -> None:
    """Put what a member says into the row. Raises ``DataError`` where it cannot be read, or the field is there."""
    if (items := MEDIA.get(kind_of(ending))) is not None:
        if not isinstance(several := row.setdefault(items, []), list):
            raise _twice(place, items)
        several.append({"bytes": content})
        return
    value = read_value(ending, content, place)
    name = field_of(ending)
    is_object = name in JSON and isinstance(value, Mapping)
    # The key is the shard's, also where its JSON repeats it.
    found = (
        {each: value[each] for each in value if each != KEY}
        if is_object
        else {form.text_field if name == "txt" else name: value}
    )
    if twice := next((key for key in found if key in row), None):
        raise _twice(place, twice)
    row.update(found)


def _changed(path: Path) -> DataError:
    return DataError(
        f"{path.absolute()} changed while it was in use. Leave the data as it is during a run, and start again"
    )


def _twice(place: str, name: str) -> DataError:
    return DataError(
        f"{place}: it gives the field {name[:_SHOWN]!r}, which another member of the sample gives too. Read one of them (dataset.endings),"
        " or set dataset.text_field to another name"
    )


def _render(template: str, row: Mapping[str, Any], place: str, name: str) -> str:
    """Write a text with the fields of a row. Raises ``DataError`` for a field that is missing, or neither text nor number."""

    def value_of(match: re.Match[str]) -> str:
        value = row.get(match[1])
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
        if match[1] not in row and not _NAME.fullmatch(match[1]):
            return match[0]
        known = ", ".join(repr(key) for key, each in row.items() if isinstance(each, str | int | float))[:200]
        raise DataError(
            f"{place}: {{{match[1]}}} of dataset.fields.{name} is no text and no number of this sample; there are {known}. Name one of"
            " them"
        )

    return _FIELD.sub(value_of, template)
