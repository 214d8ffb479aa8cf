"""The parts of the page that need no script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from mt_tools.report.changes import mark_changes
from mt_tools.report.evaluations import MAX_GROUPS, NewestFindings
from mt_tools.report.markup import Markup, element, join, table
from mt_tools.report.predictions import Prediction
from mt_tools.report.run import Run
from mt_tools.report.settings import differences, flatten, format_value
from mt_tools.report.summary import Fact, end_of, facts, headline, number, status
from mt_train.config.files import write_yaml
from mt_train.config.secrets import redact_config

COLOURS = 6
"""Colours of runs in ``report.css``; later runs get them again, dashed."""

NONE = Markup("")
_TRAINED = re.compile("«(.*?)(?:»|$)", re.DOTALL)
_COUNTS = {
    "rows_read": "Rows read",
    "rows_kept": "Rows kept",
    "rows_dropped": "Rows dropped",
    "rows_truncated": "Rows truncated",
    "rows_split": "Rows split",
    "samples": "Samples",
    "tokens_total": "Tokens",
    "tokens_trained": "Tokens trained on",
    "duplicates": "Duplicates",
}


def section(identifier: str, title: str, *content: Markup) -> Markup:
    """Return a section with a heading, or nothing if it is empty."""
    if not any(content):
        return NONE
    heading = element("h2", title, id=f"{identifier}-title")
    return element("section", heading, *content, id=identifier, aria_labelledby=f"{identifier}-title")


def swatch(index: int) -> Markup:
    """The colour of a run."""
    return element(
        "i", class_=f"swatch s{index % COLOURS}" + (" dashed" if index >= COLOURS else ""), aria_hidden="true"
    )


def heads(runs: Sequence[Run]) -> Markup:
    """A card for each run."""
    cards = (_head(run, index, alone=len(runs) == 1) for index, run in enumerate(runs))
    return element("div", *cards, class_="cards" + (" alone" if len(runs) == 1 else ""))


def _head(run: Run, index: int, *, alone: bool) -> Markup:
    name = NONE if alone else element("h2", swatch(index), run.name)  # the page's title has it
    state = element("p", status(run), class_=f"status {run.state.word}")
    perhaps = element("span", text, class_="detail") if (text := end_of(run)) else NONE
    main = headline(run)
    big = element(
        "p",
        element("span", main.label, class_="label"),
        element("strong", main.value),
        element("span", main.detail, class_="detail"),
        class_="headline",
    )
    lines = element("dl", *(_fact(fact) for fact in facts(run)))
    folder = element("p", str(run.folder.resolve()), class_="folder")
    return element("article", name, state, perhaps, big, lines, folder, _remarks(run.remarks), class_="card run")


def _fact(fact: Fact) -> Markup:
    detail = element("span", fact.detail, class_="detail") if fact.detail else NONE
    return join(element("dt", fact.label), element("dd", fact.value, " " if detail else "", detail))


def _remarks(remarks: Sequence[str]) -> Markup:
    return element("ul", *(element("li", remark) for remark in remarks), class_="remarks") if remarks else NONE


def per_run(runs: Sequence[Run], blocks: Sequence[Markup]) -> Iterator[Markup]:
    """The blocks that are not empty, under the names of their runs where there are several runs."""
    for index, (run, block) in enumerate(zip(runs, blocks, strict=True)):
        if block:
            yield join(element("h3", swatch(index), run.name), block) if len(runs) > 1 else block


# --------------------------------------------------------------------------------------------------------- evaluations


def evaluations(runs: Sequence[Run]) -> Markup:
    """Show what each evaluation found when it was last asked: its figures, then those of its groups, runs side by side."""
    names = dict.fromkeys(name for run in runs for name in run.evaluations.newest)
    return section("evaluations", "Evaluations", *(_evaluation(runs, name) for name in names))


def _evaluation(runs: Sequence[Run], name: str) -> Markup:
    found = {run.name: asked for run in runs if (asked := run.evaluations.newest.get(name)) is not None}
    return join(element("h3", name), _figures_of(found), _groups_of(found), _words_of(found))


def _figures_of(found: Mapping[str, NewestFindings]) -> Markup:
    """One row a figure, and what the answers took; a column for each run."""
    names = dict.fromkeys(name for asked in found.values() for name in asked.figures)
    rows = [[name, *(_figure(asked.figures.get(name)) for asked in found.values())] for name in names]
    rows.append(["after step", *(f"{asked.step:,}" for asked in found.values())])
    for title, key in (("seconds", "seconds"), ("requests", "requests")):
        rows.append([title, *(_figure(getattr(asked, key)) for asked in found.values())])
    heads = list(found) if len(found) > 1 else ["newest"]
    return table(["Figure", *heads], rows, numbers=len(found))


def _groups_of(found: Mapping[str, NewestFindings]) -> Markup:
    """One row a group; for each figure a column, and of several runs one for each of them."""
    groups = list(dict.fromkeys(group for asked in found.values() for group in asked.groups))[:MAX_GROUPS]
    if not groups:
        return NONE
    names = dict.fromkeys(name for asked in found.values() for each in asked.groups.values() for name in each)
    columns = [(name, run) for name in names for run in found]
    heads = [f"{name}, {run}" if len(found) > 1 else name for name, run in columns]
    rows = [
        [group, *(_figure(found[run].groups.get(group, {}).get(name)) for name, run in columns)] for group in groups
    ]
    return table(["Group", *heads], rows, numbers=len(columns))


def _words_of(found: Mapping[str, NewestFindings]) -> Markup:
    """Signatures and notes; what several runs say alike stands there once."""
    said: dict[str, list[str]] = {}
    for run, asked in found.items():
        for text in (*(f"{name}: {signature}" for name, signature in asked.signatures.items()), *asked.notes):
            said.setdefault(text, []).append(run)
    lines = [
        element("li", text, *([] if len(runs) == len(found) else [f" ({', '.join(runs)})"]))
        for text, runs in said.items()
    ]
    return element("ul", *lines, class_="detail") if lines else NONE


def _figure(value: float | None) -> str:
    return "–" if value is None else number(value)


# ------------------------------------------------------------------------------------------------------------- samples


def samples(runs: Sequence[Run]) -> Markup:
    """Show what the models wrote, the newest evaluation open."""
    return section("samples", "Samples from evaluation", *per_run(runs, [_samples_of(run) for run in runs]))


def _samples_of(run: Run) -> Markup:
    in_order: list[tuple[int, list[Prediction]]] = [(0, []), *run.samples.by_step.items()]
    newest_first = reversed(list(pairwise(in_order)))
    return join(
        *(
            element(
                "details",
                element(
                    "summary", f"Step {step:,}", element("span", f" {_format_count(len(written))}", class_="detail")
                ),
                element("div", *(_sample(each, last, _earlier(each, before)) for each in written), class_="samples"),
                open=place == 0,
            )
            for place, ((last, before), (step, written)) in enumerate(newest_first)
        )
    )


def _earlier(sample: Prediction, before: Sequence[Prediction]) -> Prediction | None:
    """Return what the evaluation before has of the same row and prompt."""
    wanted = (sample.row_id, sample.prompt)
    return next((each for each in before if (each.row_id, each.prompt) == wanted), None)


def _format_count(count: int) -> str:
    return f"{count} sample" + ("s" if count > 1 else "")


def _sample(sample: Prediction, step: int, earlier: Prediction | None) -> Markup:
    parts = [("Prompt", sample.prompt, "prompt"), ("Model", sample.text, "text"), ("Data", sample.expected, "expected")]
    texts = [
        join(element("h4", label), element("pre", text, class_=kind))
        for label, text, kind in parts
        if text or kind == "text"
    ]
    changes = NONE if earlier is None else _changes(sample, step, earlier)
    texts.insert(2 if sample.prompt else 1, changes)
    return element("article", *texts, element("p", sample.row_id, class_="detail"), class_="card sample")


def _changes(sample: Prediction, step: int, earlier: Prediction) -> Markup:
    """Return how a text differs from the one before, word by word."""
    if sample.text == earlier.text:
        return element("p", f"the same as at step {step:,}", class_="detail")
    marked = mark_changes(earlier.text, sample.text)
    if marked is None:
        return element("p", f"another text than at step {step:,}", class_="detail")
    return join(element("h4", f"Changes since step {step:,}"), element("pre", marked, class_="changes"))


# -------------------------------------------------------------------------------------------------------------- config


def config(runs: Sequence[Run]) -> Markup:
    """Show what differs between the runs, then everything."""
    content = [_differences(runs)] if len(runs) > 1 else []
    return section("config", "Config", *content, *(_full_size(run, len(runs)) for run in runs))


def _differences(runs: Sequence[Run]) -> Markup:
    different = differences([run.config for run in runs])
    if not different:
        return element("p", "The runs have the same config.")
    return table(["Key that differs", *(run.name for run in runs)], [[key, *cells] for key, cells in different.items()])


def _full_size(run: Run, count: int) -> Markup:
    title = element("summary", f"run.yaml of {run.name}" if count > 1 else "run.yaml")
    return join(_origins(run, count), element("details", title, element("pre", write_yaml(redact_config(run.config)))))


def _origins(run: Run, count: int) -> Markup:
    """The values that are no defaults, each with where it is from, for a run that says so."""
    origins, values = run.about.get("origins"), flatten(redact_config(run.config))
    if not isinstance(origins, dict):
        return NONE
    rows = [[str(key), format_value(values[key]), str(origin)] for key, origin in origins.items() if key in values]
    title = element("summary", f"What {run.name} was given" if count > 1 else "What it was given")
    return element("details", title, table(["Key", "value", "from"], rows)) if rows else NONE


# ---------------------------------------------------------------------------------------------------- data and plugins


def data(runs: Sequence[Run]) -> Markup:
    """Rows, samples and tokens, with why rows were dropped; then a sample as the model sees it."""
    return section("data", "Data", *per_run(runs, [join(_counts(run), _example(run)) for run in runs]))


def _counts(run: Run) -> Markup:
    told = run.about.get("data")
    parts = {key: part for key, part in told.items() if isinstance(part, dict)} if isinstance(told, dict) else {}
    if not parts:
        return NONE
    columns = list(parts.values())
    rows = [[label, *(_count(part.get(key)) for part in columns)] for key, label in _COUNTS.items()]
    place = 1 + list(_COUNTS).index("rows_dropped")
    rows[place:place] = _dropped_rows(columns)
    return table(["Count", *(key.replace("_", " ").capitalize() for key in parts)], rows, numbers=len(parts))


def _dropped_rows(columns: Sequence[dict[str, Any]]) -> list[list[str]]:
    dropped = [part.get("rows_dropped") for part in columns]
    reasons = dict.fromkeys(reason for counts in dropped if isinstance(counts, dict) for reason in counts)
    return [
        [
            f"  because: {reason}",
            *(_count(counts.get(reason, 0) if isinstance(counts, dict) else None) for counts in dropped),
        ]
        for reason in reasons
    ]


def _count(value: Any) -> str:
    if isinstance(value, dict):
        return _count(sum(count for count in value.values() if isinstance(count, int)))
    return f"{value:,}" if isinstance(value, int) else "–"


def _example(run: Run) -> Markup:
    text = run.about.get("example")
    if not isinstance(text, str) or not text:
        return NONE
    note = element("p", "A sample as the model sees it; what is marked is trained on.", class_="detail")
    return join(note, element("pre", mark_quoted(text), class_="wrap example"))


def mark_quoted(text: str) -> Markup:
    """Text between « and » as ``<mark>``."""
    pieces, end = [], 0
    for match in _TRAINED.finditer(text):
        pieces += [text[end : match.start()], element("mark", match[1])]
        end = match.end()
    return join(*pieces, text[end:])


def plugins(runs: Sequence[Run]) -> Markup:
    """Distributions and their versions."""
    names = dict.fromkeys(name for run in runs for name in run.plugins)
    rows = [[name, *(run.plugins.get(name, "–") for run in runs)] for name in names]
    columns = ["Version"] if len(runs) == 1 else [run.name for run in runs]
    return section("plugins", "Plugins", table(["Distribution", *columns], rows) if rows else NONE)
