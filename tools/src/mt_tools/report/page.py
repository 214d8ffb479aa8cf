"""The whole page: one file that needs nothing else and may fetch nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.resources import files

from mt_core import __version__
from mt_tools.report import sections
from mt_tools.report.answers import answers
from mt_tools.report.charts import chart_data, charts_of, figures
from mt_tools.report.checkpoint_tables import checkpoint_tables
from mt_tools.report.markup import Markup, element, join, json_script
from mt_tools.report.output import MARK
from mt_tools.report.run import Run


def page(runs: Sequence[Run]) -> str:
    """HTML of one or several runs."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    drawn = charts_of(runs)
    body = [
        _header(title),
        element("main", *_main(runs, [*figures(runs, drawn)])),
        json_script(chart_data(runs, drawn), "figures"),
    ]
    return document(
        f"{title} – run report",
        asset("report.css"),
        asset("elements.js") + asset("charts.js") + asset("report.js"),
        *body,
    )


def document(title: str, style: str, script: str, *body: Markup, pictures: bool = False, connects: bool = False) -> str:
    """A whole HTML file of these parts, with its style and script in it and nothing else allowed but ``pictures`` that are in it.

    With ``connects`` it may ask the server that it is from.
    """
    head = join(
        Markup('<meta charset="utf-8">\n'),
        Markup(f'{MARK}{__version__}">\n'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
        Markup(
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script, pictures=pictures, connects=connects)}">\n'
        ),
        Markup('<meta name="color-scheme" content="light dark">\n'),
        element("title", title),
        Markup(f"\n<style>{style}</style>\n"),
    )
    whole = element("body", *body, Markup(f"<script>{script}</script>"))
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}</head>\n{whole}\n</html>\n'


def asset(name: str) -> str:
    """A style or script of this package."""
    return files("mt_tools.report").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(style: str, script: str, *, pictures: bool, connects: bool) -> str:
    """Return the policy: only our own style and script run, known by their hashes; nothing is loaded from anywhere else."""
    own = "; connect-src 'self'" if connects else ""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none';"
        f" form-action 'none'{'; img-src data:' if pictures else ''}{own}"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(title: str) -> Markup:
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    made = element("p", f"Run report, made {now} by mt-core {__version__}", class_="detail")
    return element("header", element("h1", title), made)


PARTS: Mapping[str, Callable[[Sequence[Run]], Markup]] = {
    "heads": sections.heads,
    "evaluations": sections.evaluations,
    "checkpoint-evaluations": checkpoint_tables,
    "answers": answers,
    "samples": sections.samples,
    "data": sections.data,
    "config": sections.config,
    "plugins": sections.plugins,
}
"""The sections of the page besides its charts, in order: each takes runs, and is empty if they have no data for it."""


def _main(runs: Sequence[Run], drawn: Sequence[Markup]) -> list[Markup]:
    head, *others = (part(runs) for part in PARTS.values())
    return [head, _curves(runs, drawn), *others]


def _curves(runs: Sequence[Run], drawn: Sequence[Markup]) -> Markup:
    if not drawn:
        return sections.section("curves", "Curves", element("p", "No figures yet."))
    controls = element("div", class_="controls card", id="controls", hidden=True)
    thinned = [(run.name, text) for run in runs if (text := run.curves.describe_thinning())]
    notes = [element("p", f"{name}: {text}", class_="detail") for name, text in thinned]
    plain = element("noscript", element("p", "The curves need JavaScript; these tables stand in for them."))
    return sections.section("curves", "Curves", *notes, plain, controls, element("div", *drawn, class_="charts"))
