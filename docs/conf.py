"""The pages as a site: ``sphinx-build -W -c docs . site`` in the folder of the repository. It loads nothing from elsewhere.

Pages stay plain Markdown, at the same places relative to each other, so that their links work here and on a code host. The
navigation is the list in README.md: each bold line is a group, and each item below it a page.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

project = html_title = "mt"
root_doc = "docs/README"
_DISTRIBUTIONS = ("core", "train", "tools", "conformance")
include_patterns = [
    "docs/**",
    *(f"{name}/README.md" for name in _DISTRIBUTIONS),
    "plugins/*/README.md",
    "examples/*/README.md",
]
exclude_patterns = [
    ".*",
    "benchmarks",
    *(f"{name}/src" for name in _DISTRIBUTIONS),
    "plugins/*/src",
    "examples/*/src",
    "runs",
    "site",
    "tests",
]
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions, myst_linkify_fuzzy_links = ["linkify"], False
smartquotes = False
html_theme = "furo"
html_static_path, html_css_files = ["style"], ["wide.css"]
html_copy_source = html_use_index = False
html_show_copyright = html_show_sphinx = False

_GROUP = re.compile(r"^\*\*(.+)\*\*\n\n((?:- .*\n)+)", re.MULTILINE)
_PAGE = re.compile(r"^- \[(.*?)\]\((.+)\.md\)", re.MULTILINE)
_TREE = "\n```{{toctree}}\n:hidden:\n:titlesonly:\n:caption: {}\n\n{}\n```\n"
_START = '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{1}</a>\n'


def navigate(app: Sphinx, page: str, content: list[str]) -> None:
    """Add to README.md what Sphinx makes the navigation of."""
    if page == root_doc:
        for group, items in _GROUP.findall(content[0]):
            entries = (f"{title} <{place}>" for title, place in _PAGE.findall(items))
            content[0] += _TREE.format(group, "\n".join(entries))
    elif page == "docs/decisions/README":
        content[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"


def begin(app: Sphinx, error: Exception | None) -> None:
    """Write index.html, which leads to the first page."""
    if error is None:
        (Path(app.outdir) / "index.html").write_text(_START.format(f"{root_doc}.html", project), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", navigate)
    app.connect("build-finished", begin)
