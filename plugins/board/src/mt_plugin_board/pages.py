"""The pages: frames that the script fills. All three have the same style and script, known by their hashes."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from mt_tools.report import Markup, asset, document, element

from .view import NAMES, machine_figures


@cache
def page(kind: str) -> bytes:
    """Return a page: ``index``, ``runs`` or ``search``."""
    style = asset("report.css") + _own("board.css")
    script = asset("elements.js") + asset("charts.js") + _own("parallel.js") + _own("board.js")
    title = {"index": "Runs", "runs": "Run", "search": "Search"}[kind]
    head = element(
        "header",
        element(
            "nav",
            element("a", "All runs", href="/") if kind != "index" else Markup(""),
            element("span", "", id="live", role="status"),
        ),
        element("h1", title, id="title"),
        element("p", "", id="problem", class_="remarks", hidden=True, role="alert"),
    )
    main = element("main", *_main(kind), id="main", data_page=kind)
    plain = element("noscript", element("p", "This page needs JavaScript. mt-report writes one that does without."))
    return document(f"{title} – mt-board", style, script, head, plain, main, connects=True).encode()


def _own(name: str) -> str:
    return files("mt_plugin_board").joinpath("assets", name).read_text(encoding="utf-8")


def _main(kind: str) -> list[Markup]:
    if kind != "runs":
        return [element("div", id="content")]
    parts = {name: element("div", id=f"part-{name}") for name in NAMES}
    curves = element(
        "section",
        element("h2", "Curves"),
        element("div", class_="controls card", id="controls", hidden=True),
        element("div", id="figures", class_="charts"),
        id="curves",
    )
    machine = element(
        "section",
        element("h2", "Machine"),
        element("div", class_="controls card", id="machine-controls", hidden=True),
        machine_figures(),
        id="machine",
        hidden=True,
    )
    log = element(
        "section",
        element("h2", "Log"),
        element(
            "div",
            element("label", "rank ", element("select", id="log-rank")),
            element("label", "only lines with ", element("input", id="log-filter", type="search")),
            class_="controls card still",
        ),
        element("pre", id="log-lines", class_="wrap example", tabindex="0"),
        id="log-section",
        hidden=True,
    )
    head, tokens, *others = parts.values()
    after = [others[NAMES.index("notices") - 2]]
    rest = [part for part in others if part not in after]
    command = element("div", id="command")
    return [head, command, curves, tokens, *rest[:4], *after, machine, *rest[4:], log]
