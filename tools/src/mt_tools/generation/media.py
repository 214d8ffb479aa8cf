"""Media of prompts: files beside a text, which ``<image>`` and the like stand for in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import expanduser
from pathlib import Path
from typing import Any

from mt_core.data.media_parts import media_parts
from mt_core.errors import UsageError
from mt_core.rows import MediaPart, Message
from mt_tools.generation.rows import prompt_turns
from mt_train.data.media.marks import mark_parts
from mt_train.data.media.rules import FILES, MediaRules

NO_MEDIA = MediaRules(kinds=frozenset(), roots=())
"""Rules of a model that reads text alone."""


@dataclass(frozen=True)
class MediaText:
    """A text with a mark for each part, and the parts."""

    text: str
    parts: tuple[MediaPart, ...]


def parse_media(images: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """Return kind and content of each ``--image FILE`` and ``--media KIND=FILE``. Raises ``UsageError`` for another form."""
    found = [("image", each) for each in images]
    for each in others:
        kind, equals, content = each.partition("=")
        if not (kind and equals and content):
            raise UsageError(f"--media {each}: write KIND=FILE, for instance image=cat.png, or dna=ACGT for letters")
        found.append((kind, content))
    return found


class MediaFiles:
    """Files that were named for a model. Texts take those of a kind one after another."""

    def __init__(self, files: Sequence[tuple[str, str]], rules: MediaRules = NO_MEDIA) -> None:
        """``rules`` say which kinds the model reads. Raises ``UsageError`` for a file of another."""
        self._rules, kinds = rules, rules.kinds
        self._left = {kind: [content for each, content in files if each == kind] for kind in sorted(kinds)}
        if unknown := sorted({kind for kind, _ in files} - kinds):
            raise UsageError(
                f"the model has no encoder that reads {', '.join(unknown)} (it reads {', '.join(sorted(kinds)) or 'text alone'}); leave the"
                " files out, or name a model that sees"
            )

    @property
    def waiting(self) -> Mapping[str, str]:
        """Kind and content of the files that texts take next."""
        return {kind: contents[0] for kind, contents in self._left.items() if contents}

    def mark(self, text: str, *, whole: bool) -> MediaText:
        """Return a text with the next files; with ``whole`` it takes all that are left.

        Raises ``UsageError`` where the text has places for more files than there are, or for fewer of a ``whole``.
        """
        fields: dict[str, Any] = {}
        places_of = {kind: text.count(f"<{kind}>") for kind in self._left}
        for kind, places in places_of.items():
            left = self._left[kind]
            if places > len(left) or (whole and places != len(left)):
                option = f"--{kind}" if kind == "image" else f"--media {kind}="
                raise UsageError(
                    f"the prompt has <{kind}> {places} times, and there are {len(left)} files for it ({option}); make them as many"
                )
            if places:
                fields[f"{kind}s"] = [str(_real(each)) if kind in FILES else each for each in left[:places]]
        if not fields and not self._rules.patterns:
            return MediaText(text, ())
        folders = [Path(each).parent for kind in FILES for each in fields.get(f"{kind}s", ())]
        rules = replace(self._rules, roots=tuple(dict.fromkeys(folders)), root_option="")
        row, _ = mark_parts({"id": "the prompt", "prompt": text, **fields}, rules)
        for kind, places in places_of.items():
            del self._left[kind][:places]
        return MediaText(row["prompt"], row.get("media", ()))


def mark_row(content: Mapping[str, Any], rules: MediaRules, folder: Path) -> str | MediaText | list[Message]:
    """Return the prompt of a row, with media where it has fields for them; files lie below ``folder``. Raises ``DataError``."""
    row: Mapping[str, Any] = content
    if rules.kinds:
        row, _ = mark_parts(content, replace(rules, roots=(folder,), root_option=""))
    if "messages" in row:
        return prompt_turns(row)
    parts = media_parts(row)  # what the file itself says under "media" is none
    return MediaText(row["prompt"], parts) if parts else row["prompt"]


def _real(file: str) -> Path:
    return Path(expanduser(file)).resolve()
