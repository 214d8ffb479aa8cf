"""The site of the pages, as ``docs/conf.py`` says to build it: whole, without a broken link, and loading nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements whose address a browser fetches without being asked."""


@dataclass
class Html(HTMLParser):
    """What a page of the site has and asks for."""

    path: Path
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for value in (given.get("id"), given.get("name") if tag == "a" else None) if value}
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        if (address := given.get(LOADED.get(tag, ""))) and not address.startswith("data:"):
            self.loaded.append(address)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the site has been built."""
    out = tmp_path_factory.mktemp("site").resolve()
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-c", str(DOCS), str(ROOT), str(out)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def site(folder: Path) -> dict[Path, Html]:
    """Every page by its file."""
    return {path: Html(path) for path in folder.rglob("*.html")}


def targets(page: Html) -> Iterator[tuple[str, Path, str]]:
    """Each link or file within the site: as written, the file, the anchor."""
    for address in [*page.links, *page.loaded]:
        parts = urlsplit(address)
        if not parts.scheme and not parts.netloc:
            file = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            yield address, file, unquote(parts.fragment)


def test_each_link_anchor_and_image_of_the_site_is_there(site: dict[Path, Html]) -> None:
    broken = [
        f"{page.path.name}: {address}"
        for page in site.values()
        for address, file, anchor in targets(page)
        if not file.is_file() or (anchor and file in site and anchor not in site[file].anchors)
    ]
    assert broken == []
    assert sum(len(page.links) for page in site.values()) > 1000


def test_the_site_loads_nothing_from_elsewhere(site: dict[Path, Html], folder: Path) -> None:
    assert [address for page in site.values() for address in page.loaded if urlsplit(address).netloc] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.css"))
    assert styles
    assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", styles) == []


def test_every_page_of_the_docs_is_in_the_navigation_once() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    items = re.findall(r"^- \[[^]]*\]\(([^):]+\.md)\)", index, re.MULTILINE)
    decisions = {path.name for path in DOCS.glob("decisions/0*.md")}
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.name not in decisions} - {"README.md"}
    beside = [*ROOT.glob("[!d.]*/README.md"), *ROOT.glob("plugins/*/README.md"), *ROOT.glob("examples/*/README.md")]
    readmes = {f"../{path.relative_to(ROOT)}" for path in beside}
    assert sorted(items) == sorted(pages | readmes)
    table = (DOCS / "decisions/README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\((0[^)]+\.md)\)", table)) == sorted(decisions)


def test_code_is_shown_as_code_and_tables_as_tables(site: dict[Path, Html]) -> None:
    pages = {path.stem: "".join(page.text) for path, page in site.items()}
    assert "pip install -r requirements.txt" in pages["start"]
    assert [name for name, text in pages.items() if "```" in text or "skip=" in text or "|---" in text] == []
    assert "encode(row) -> Sample | Rejected" in pages["contract"]
