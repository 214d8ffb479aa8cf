"""Code on the pages for authors: files as they are, each behind a mark that says which one.

``<!-- new adapter gated: layer.py -->`` stands above what ``mt-plugins new adapter gated`` writes, ``<!-- file core/… -->`` above a file
of this repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection
from mt_core.scaffold import draft

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "write"
FOUND = PluginHost.discover(Selection())
"""Everything that is installed: kinds that distributions of this repository bring have pages, too."""

BLOCK = re.compile(
    r"<!-- (new ([a-z-]+) ([a-z-]+): (\S+)|file (\S+)) -->\n\n```(\w+)\n.*?^```$", re.MULTILINE | re.DOTALL
)


def pages() -> list[Path]:
    """One for each kind, and how it is published."""
    return [*sorted(FOLDER.glob("*.md")), ROOT / "docs" / "publishing.md"]


def page(path: Path) -> str:
    """The page as it should be. Raises ``ValueError`` for a file that no new plugin has."""
    return BLOCK.sub(_block, path.read_text(encoding="utf-8"))


def _block(found: re.Match[str]) -> str:
    mark, kind, name, file, place, language = found.groups()
    text = (ROOT / place).read_text(encoding="utf-8") if place else _start_line(kind, name, file)
    return f"<!-- {mark} -->\n\n```{language}\n{text}```"


def _start_line(kind: str, name: str, file: str) -> str:
    plugin = draft(kind, name, FOUND.kinds.templates, FOUND.bringers)
    texts = [text for place, text in plugin.files.items() if place.name == file]
    if len(texts) != 1:
        raise ValueError(f"a new {kind} has {len(texts)} files named {file!r}; the page needs one")
    return texts[0]
