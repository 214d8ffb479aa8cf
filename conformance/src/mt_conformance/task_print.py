"""Conformance of a metric printer: a line of text whatever there is to print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mt_conformance.base import BasePluginConformance
from mt_core.plugins.host import PluginHost
from mt_core.protocols import StepRecord, TaskPrint


def record(step: int, *, loss: float = 2.0, **more: float) -> StepRecord:
    """A step with these figures of the objective, and of an evaluation where they begin with ``eval_``."""
    metrics = {key: value for key, value in more.items() if not key.startswith("eval_")}
    evaluation = {key: value for key, value in more.items() if key.startswith("eval_")}
    return StepRecord(step, loss, 1e-3, 1.0, 100 * step, 1000.0, 0.5, 0.0, metrics, evaluation)


class BaseTaskPrintConformance(BasePluginConformance):
    """Checks of a task print: ``(records) -> str``."""

    kind = "task_print"
    figures: Sequence[str] = ("token_accuracy", "eval_loss", "eval_token_accuracy")
    """Figures that it prints where a record has them; those of an evaluation begin with ``eval_``."""

    def printer(self, host: PluginHost, folder: Path) -> TaskPrint:
        """Build the printer as a run does."""
        built: TaskPrint = self.part(host, folder).build()
        return built

    def line(self, host: PluginHost, folder: Path, records: Sequence[StepRecord], what: str) -> str:
        """Return the line that it prints. Raises ``AssertionError`` where that is no line, or anything is raised."""
        try:
            line = self.printer(host, folder)(records)
        except Exception as error:
            raise AssertionError(
                f"with {what} the printer raised {type(error).__name__}: {error}. Leave out what is not there; with"
                " nothing to say, return an empty string"
            ) from error
        assert isinstance(line, str), f"with {what} it returned {line!r}; a printer returns text, empty for no line"
        count = len(f"{line}.".splitlines())  # with the point, a break at the end counts
        assert count == 1, f"with {what} it returned {count} lines: {line!r}; return a single one"
        return line

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """The line of seven records."""
        return self.line(host, folder, self.full_records(), "seven records")

    def full_records(self) -> list[StepRecord]:
        """Seven records with every figure."""
        return [record(step, **dict.fromkeys(self.figures, step / 7)) for step in range(1, 8)]

    def test_no_records_give_a_line_or_nothing(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With no records the task print returns a line or an empty text: a resumed run begins with none."""
        self.line(mt_host, tmp_path, [], "no records")

    def test_figures_that_are_missing_are_left_out(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Missing figures are left out: objectives differ in figures, and most steps have no evaluation."""
        for left_out in (*self.figures, None):
            given = dict.fromkeys(self.figures if left_out else (), 0.5)
            given.pop(left_out or "", None)
            what = f"a record without {left_out}" if left_out else "a record without figures and evaluation"
            self.line(mt_host, tmp_path, [record(1, **given)], what)
        full = dict.fromkeys(self.figures, 0.5)
        self.line(mt_host, tmp_path, [record(1), record(2, **full)], "figures in the last of two records alone")
        self.line(mt_host, tmp_path, [record(1, **full), record(2)], "figures in the first of two records alone")

    def test_it_is_one_line_whatever_the_numbers(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The text is one line, also for many records, and for NaN or infinite losses."""
        assert self.line(mt_host, tmp_path, self.full_records(), "seven records").strip(), (
            "with seven records that have every figure it printed nothing; name the figures that it prints in `figures`"
        )
        for loss in (math.nan, math.inf, 0.0, 1e300):
            self.line(
                mt_host, tmp_path, [record(3, loss=loss, **dict.fromkeys(self.figures, loss))], f"a loss of {loss}"
            )

    def test_it_changes_nothing(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """The records are unchanged, since they are also written to the run's files."""
        records = [record(step, **dict.fromkeys(self.figures, 0.5)) for step in (1, 2)]
        before = [each.as_dict() for each in records]
        line = self.line(mt_host, tmp_path, records, "two records")
        assert [each.as_dict() for each in records] == before, (
            "it changed the records that it was given; they are written to metrics.jsonl as well: work on copies"
        )
        printer = self.printer(mt_host, tmp_path)
        other = [printer(self.full_records()), printer(records)][1]
        assert line == other, (
            f"two records gave {line!r}, and {other!r} from a printer that has printed others before: keep nothing of earlier records"
        )
        again = self.line(mt_host, tmp_path, records, "the same records")
        assert line == again, f"the same two records gave {line!r}, and from a printer built anew {again!r}"
