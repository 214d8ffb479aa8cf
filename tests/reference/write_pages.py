"""``python tests/reference/write_pages.py`` writes what docs/ and the READMEs of plugins take from the code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import commands_page
import components_table
import hooks_page
import kind_pages
import names_page
import options_page
import shipped_names
import types_page
import versions_table

PAGES: dict[Path, Callable[[], str]] = {
    hooks_page.PAGE: hooks_page.page,
    names_page.PAGE: names_page.page,
    options_page.PAGE: options_page.page,
    commands_page.PAGE: commands_page.page,
    versions_table.PAGE: versions_table.page,
    types_page.PAGE: types_page.page,
    shipped_names.PATH: shipped_names.content,
}
"""Page → what it should be."""

PAGES |= {path: partial(kind_pages.page, path) for path in kind_pages.pages()}
PAGES |= {path: partial(components_table.page, path, offers) for path, offers in components_table.pages().items()}

if __name__ == "__main__":
    for page, content in PAGES.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(content(), encoding="utf-8")
