"""Conformance of a metric: figures of any prediction, the same each time, with a word on how they are computed."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mt_conformance.base import BasePluginConformance
from mt_conformance.tokenizer import NASTY
from mt_core.plugins.host import PluginHost
from mt_core.rows import Row

_FIGURE = re.compile(r"[a-z0-9_]+")

Scored = tuple[str, Sequence[str], Row]
"""A prediction, every text that would be right, and the row that it answers."""

SEA: Row = {"id": "rows.jsonl:1", "prompt": "What is wide?", "response": "the sea"}


class Metric(Protocol):
    """A metric as the kit calls it: that of mt-plugin-evals, which the kit does not import."""

    signature: str

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """Figures of one prediction."""
        ...

    def total(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """Figures over all rows."""
        ...


class BaseMetricConformance(BasePluginConformance):
    """Figures of predictions beside what was expected."""

    kind = "metric"
    scored: Sequence[Scored] = (
        ("the sea", ("the sea", "the wide sea"), SEA),
        ("The Sea.", ("the sea",), SEA),
        ("an old man", ("the sea",), SEA),
        ("12", ("the sea",), SEA),
    )
    """Predictions and references that it is tried on; a metric that reads fields of a row, or texts of a certain form, names its own."""

    counting: Sequence[str] = ()
    """Figures of ``total`` that grow with the number of rows."""

    def metric(self, host: PluginHost, folder: Path) -> Metric:
        """Build the metric as an evaluation does."""
        built: Metric = self.part(host, folder).build()
        return built

    def scores(self, metric: Metric, scored: Sequence[Scored], what: str = "") -> list[dict[str, float]]:
        """Score each. Raises ``AssertionError`` for whatever is raised, and for what are no figures."""
        found = []
        for prediction, references, row in scored:
            said = f"{what or 'the prediction'} {prediction[:60]!r} beside {[each[:60] for each in references]}"
            try:
                figures = metric.score(prediction, references, row)
            except Exception as error:
                raise AssertionError(
                    f"{said} raised {type(error).__name__}: {error}. A model writes anything: give figures, 0 where nothing is"
                    " right"
                ) from error
            found.append(check_figures(figures, said))
        return found

    def total(self, metric: Metric, scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Give the figures over all. Raises ``AssertionError`` for whatever is raised, and for what are no figures."""
        said = f"total of {len(scores)} row(s)"
        try:
            figures = metric.total(scores)
        except Exception as error:
            raise AssertionError(
                f"{said} raised {type(error).__name__}: {error}. Figures of no row are numbers as well: 0, or NaN"
            ) from error
        return check_figures(figures, said)

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return scores and total of the predictions."""
        metric = self.metric(host, folder)
        scores = [dict(metric.score(*each)) for each in self.scored]
        return scores, dict(metric.total(scores))

    def test_the_same_predictions_have_the_same_figures(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Figures are the same when computed twice, in another order, and by a metric that is built again."""
        metric, other = self.metric(mt_host, tmp_path), self.metric(mt_host, tmp_path)
        first = self.scores(metric, self.scored)
        for what, built in (("asked again, the last one first", metric), ("built anew", other)):
            found = self.scores(built, self.scored[::-1])[::-1]
            differ = [place for place, each in enumerate(first) if repr(found[place]) != repr(each)]
            assert not differ, (
                f"{what}, the prediction {self.scored[differ[0]][0]!r} has {found[differ[0]]}, and at first {first[differ[0]]}. A"
                " figure of a row follows from this row alone; what needs all of them is computed in total"
            )
            totals = repr(self.total(built, first)), repr(self.total(metric, first))
            assert totals[0] == totals[1], f"{what}, the total of the same scores is {totals[0]}, and was {totals[1]}"

    def test_texts_of_any_kind_have_figures(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Empty predictions, missing references and unusual texts have figures."""
        metric = self.metric(mt_host, tmp_path)
        references, row = self.scored[0][1:]
        self.scores(metric, [("", references, row)], "the empty prediction")
        self.scores(metric, [(self.scored[0][0], (), row)], "without references, the prediction")
        for what, text in NASTY.items():
            self.scores(metric, [(text, references, row), (text, [*references, text], row)], f"{what}: the prediction")

    def test_totals_are_figures_also_of_one_row_and_of_none(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``total`` works for one row and for none: a subject may have a single question, and a filter may leave none."""
        metric = self.metric(mt_host, tmp_path)
        scores = self.scores(metric, self.scored)
        whole = self.total(metric, scores)
        assert whole, "total gives no figure; give one at least"
        for count in (1, 0):
            found = self.total(metric, scores[:count])
            fresh = self.total(self.metric(mt_host, tmp_path), scores[:count])
            assert repr(found) == repr(fresh), (
                f"after a total of {len(scores)} rows, that of {count} row(s) is {found}, and {fresh} by a metric built"
                " anew; keep nothing of"
                " one total for the next"
            )
            assert found.keys() == whole.keys(), (
                f"total of {count} row(s) has the figures {sorted(found)}, and of {len(scores)} {sorted(whole)}; the names are the"
                " same whatever there is"
            )

    def test_the_total_is_of_all_rows_alike(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``total`` is the same for the rows in another order, and with each row twice. A figure that counts is named in ``counting``."""
        metric = self.metric(mt_host, tmp_path)
        scores = self.scores(metric, self.scored)
        whole = self.total(metric, scores)
        for what, other in (("in another order", scores[::-1]), ("with each row twice", [*scores, *scores])):
            found = self.total(metric, other)
            differ = [name for name in whole if name not in self.counting and not _is_equal(found[name], whole[name])]
            assert not differ, (
                f"{what}, the total has {differ[0]} = {found[differ[0]]:g}, and {whole[differ[0]]:g} before. Use every"
                " row alike, and divide"
                " a sum by its count; where a figure is a count, name it in `counting` of the test"
            )

    def test_its_signature_says_how_figures_are_computed(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The signature is one line that says how figures are computed, including the library's version."""
        signature: Any = getattr(self.metric(mt_host, tmp_path), "signature", None)
        told = isinstance(signature, str) and signature.strip() and len(signature.splitlines()) == 1
        assert told, (
            f"its signature is {signature!r}; write one line that says what has to be equal for two figures to be compared:"
            " rules, options and the version of a library"
        )

    def test_it_changes_nothing(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """References, rows and scores are unchanged, since other metrics and files use them."""
        metric = self.metric(mt_host, tmp_path)
        scored = [(prediction, list(references), dict(row)) for prediction, references, row in self.scored]
        before = copy.deepcopy(scored)
        scores = self.scores(metric, scored)
        assert scored == before, "score changed the references or the row that it was given; work on copies"
        kept = copy.deepcopy(scores)
        self.total(metric, scores)
        assert repr(scores) == repr(kept), "total changed the scores that it was given; work on copies"


def _is_equal(one: float, other: float) -> bool:
    """Return whether two figures are equal up to the order of a sum; two NaN are."""
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def check_figures(figures: Any, said: str) -> dict[str, float]:
    """Return figures as they were given. Raises ``AssertionError`` for what are none."""
    assert isinstance(figures, Mapping), f"{said} gives {figures!r}; figures are a mapping of names to numbers"
    for name, value in figures.items():
        assert isinstance(name, str) and _FIGURE.fullmatch(name), (  # noqa: PT018 - one sentence for both
            f"{said} has a figure {name!r}; a name has lower-case letters, digits and '_'"
        )
        assert type(value) in (int, float), (
            f"{said} has {name} = {value!r} ({type(value).__name__}); a figure is a float: write float(…) around it"
        )
    return dict(figures)
