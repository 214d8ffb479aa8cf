"""The table of components in the README of each plugin: what ``mt-plugins list --components`` shows, in the same form everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import options_page

from mt_core.cli.plugins_text import words
from mt_core.plugins.host import Offer

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- components: begin -->", "<!-- components: end -->"
HEAD = "| component | kind | what it is |\n|---|---|---|"
TWICE = "train_model"
"""A kind whose components have the name and the README line of a ``model``."""


def pages() -> dict[Path, list[Offer]]:
    """Each README of a plugin that offers components → what the plugin offers."""
    found: dict[str, list[Offer]] = {}
    for plugin in options_page.first_party().plugins:
        found.setdefault(plugin.info.distribution, []).extend(offer for offer in plugin.offers if offer.kind != TWICE)
    folders = {name: ROOT / "plugins" / name.removeprefix("mt-plugin-") / "README.md" for name in found}
    return {folders[name]: offers for name, offers in found.items() if offers}


def page(path: Path, offers: list[Offer]) -> str:
    """The README as it should be. Raises ``ValueError`` for one without the marks of the table."""
    text = path.read_text(encoding="utf-8")
    if not (BEGIN in text and END in text):
        raise ValueError(f"{path} has no table of components; write {BEGIN} and {END} where it should stand")
    before, _, rest = text.partition(BEGIN)
    return "\n".join([f"{before}{BEGIN}\n", HEAD, *_rows(offers), f"\n{END}{rest.partition(END)[2]}"])


def _rows(offers: list[Offer]) -> Iterator[str]:
    kinds = list(dict.fromkeys(offer.kind for offer in offers))
    for offer in sorted(offers, key=lambda each: kinds.index(each.kind)):
        yield f"| `{offer.component.name}` | {words(offer.kind)} | {options_page.sentence(offer.component.summary)} |"
