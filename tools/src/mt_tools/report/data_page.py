"""The page of ``mt-data inspect``: warnings, figures, lengths and examples, in one file that fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from mt_tools.report.markup import Markup, element, join, table
from mt_tools.report.page import asset, document
from mt_tools.report.rows import counts, histogram, title_of
from mt_tools.report.sections import section

PICTURE = "data:image/png;base64,"
"""How a picture that is in the page begins; no other is shown."""


def data_page(about: Mapping[str, Any]) -> str:
    """HTML of what ``mt-data inspect --json`` prints."""
    body = [
        _header(about),
        element("main", _warnings(about), _counts(about), _lengths(about), _examples(about)),
    ]
    pictures = any("picture" in part for example in about["examples"] for part in example["parts"])
    return document(f"{about['dataset']} – data report", asset("report.css"), "", *body, pictures=pictures)


def _header(about: Mapping[str, Any]) -> Markup:
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    made = element("p", f"Data report, made {now} by mt-core {about['core']}", class_="detail")
    chosen = title_of(about)
    return element("header", element("h1", chosen[:1].upper() + chosen[1:]), made)


def _warnings(about: Mapping[str, Any]) -> Markup:
    found = [*about["warnings"], *(f"bad row: {problem}" for problem in about["bad_rows"])]
    if not found:
        return element("p", "no warning", class_="status done")
    count = f"{len(found)} warning" + ("s" if len(found) > 1 else "")
    listed = element("ul", *(element("li", text) for text in found), class_="remarks")
    return join(element("p", count, class_="status stopped"), listed)


def _counts(about: Mapping[str, Any]) -> Markup:
    splits = [{"train": "Training", "held_out": "Held out"}.get(name, name) for name in about["splits"]]
    rows = [
        [("  " if row.is_part else "") + row.label, *row.values, ", ".join(row.places)]
        for row in counts(about["splits"], about["document_names"])
    ]
    return section("rows", "Rows and tokens", table(["Count", *splits, "First rows"], rows, numbers=len(splits)))


def _lengths(about: Mapping[str, Any]) -> Markup:
    rows = [[label, f"{count:,}", _bar(share)] for label, count, share in histogram(about["lengths"])]
    return section("lengths", "Lengths", table(["Tokens", "Samples", ""], rows, numbers=1)) if rows else Markup("")


def _bar(share: float) -> Markup:
    bar = element("rect", width=f"{100 * share:.1f}%", height="100%")
    return element("svg", bar, class_="bar", width="100%", height="12", aria_hidden="true")


def _examples(about: Mapping[str, Any]) -> Markup:
    note = element(
        "p", "Samples as the model sees them; what is marked is trained on, special tokens are blue.", class_="detail"
    )
    shown = list(_excerpt(about))
    return section("examples", "Examples", note, *shown) if shown else Markup("")


def _run(trained: bool, parts: Iterable[Markup | str]) -> Markup:
    return element("mark", *parts) if trained else join(*parts)


def _mark_special(part: Mapping[str, Any]) -> Markup | str:
    """Return a part as it is shown: media with a small picture in front, where the processor has one."""
    text = element("span", part["text"], class_="token") if part["special"] else str(part["text"])
    if not str(part.get("picture", "")).startswith(PICTURE):
        return text
    return join(element("img", src=part["picture"], alt="", class_="thumbnail"), text)


def _excerpt(about: Mapping[str, Any]) -> Iterator[Markup]:
    for example in about["examples"]:
        yield element(
            "h3", f"{example['row_id']}: {example['tokens']:,} tokens, {example['tokens_trained']:,} trained on"
        )
        for name, pieces in groupby(example["parts"], key=itemgetter("document")):
            runs = groupby(pieces, key=itemgetter("trained"))
            parts = [_run(trained, map(_mark_special, parts)) for trained, parts in runs]
            text = element("pre", join(*parts), class_="wrap example")
            yield join(element("p", name, class_="detail"), text) if name else text
