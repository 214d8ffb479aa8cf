"""The evaluations that a run names: those that are due at a step, and their lines in ``evaluations.jsonl``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mt_core.config.base import MtConfig
from mt_core.errors import ComponentError, MtError, UsageError
from mt_core.evaluation import Evaluation, EvaluationConfig, Findings, Subject, figure_prefix
from mt_core.protocols import Tokenizer
from mt_core.tracking.step_lines import StepLines
from mt_train.assemble.parts import Parts
from mt_train.assemble.subjects import paper_subject
from mt_train.engine.processes import share_text
from mt_train.evaluate.paper import PaperSubject
from mt_train.evaluate.subject import LiveSubject, LoadedSubject
from mt_train.generation.continuation import special_stops
from mt_train.tracking.failures import describe_failure
from mt_train.tracking.metrics import without_nan

FILE = "evaluations.jsonl"


@runtime_checkable
class HasStops(Protocol):
    """An evaluation that says before which texts its answers end; one that would never be found is refused before the first step."""

    stop_texts: tuple[str, ...]


@runtime_checkable
class ChecksRows(Protocol):
    """An evaluation that looks at its rows before the first step, and so does not end a run that has trained for hours."""

    def check(self, subject: Subject) -> None:
        """Raise what ``run`` would before it asks anything; the subject encodes, and has no model."""
        ...


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Findings of one evaluation, with what they took."""

    name: str
    findings: Findings
    seconds: float
    requests: int

    def as_dict(self) -> dict[str, Any]:
        """The content of a line, but for the step."""
        found = self.findings
        content = {
            "evaluation": self.name,
            "figures": dict(found.figures),
            "groups": {name: dict(figures) for name, figures in found.groups.items()},
            "signatures": dict(found.signatures),
            "notes": list(found.notes),
        }
        return {**content, "seconds": round(self.seconds, 3), "requests": self.requests}


def ask(name: str, evaluation: Evaluation, subject: LoadedSubject | PaperSubject) -> Answer:
    """Run one evaluation. Raises ``ComponentError`` that names it, for what is no ``MtError``."""
    began, before = time.perf_counter(), subject.requests
    with _named_failures(name, evaluation):
        findings = evaluation.run(subject)
    if not isinstance(findings, Findings):
        raise ComponentError(
            f"evaluation {name} ({type(evaluation).__module__}) gives {type(findings).__name__}; run() returns mt_core.evaluation.Findings"
        )
    return Answer(
        name=name,
        findings=findings,
        seconds=time.perf_counter() - began,
        requests=subject.requests - before,
    )


@contextmanager
def _named_failures(name: str, evaluation: Evaluation) -> Iterator[None]:
    try:
        yield
    except MtError:
        raise
    except Exception as error:  # a plugin's code may raise anything; whose it is has to be said
        raise ComponentError(
            f"evaluation {name} ({type(evaluation).__module__}) failed: {describe_failure(error, evaluation)}"
        ) from error


def build_evaluations(parts: Parts) -> dict[str, Evaluation]:
    """Build the evaluations of a run, by name, and check their rows, before any weight is loaded.

    Raises ``UsageError`` for a text that would end no answer (``HasStops``), and ``MtError`` for rows that cannot be asked
    (``ChecksRows``).
    """
    built = parts.evaluations()
    subject = paper_subject(parts) if built else None
    for name, evaluation in built.items():
        assert subject is not None, "there are evaluations"
        if isinstance(evaluation, HasStops):
            _refuse_stops(name, evaluation.stop_texts, subject.tokenizer)
        if isinstance(evaluation, ChecksRows):
            with _named_failures(name, evaluation):
                evaluation.check(subject)
    return built


class Evaluations:
    """Evaluations of a run, by name. ``folder`` is the run's on the rank that writes."""

    def __init__(
        self,
        parts: Parts,
        built: Mapping[str, Evaluation],
        make_subject: Callable[[], LiveSubject],
        folder: Path | None,
        total_steps: int,
    ) -> None:
        self._make_subject = make_subject
        self._built = built
        self._every = {each.name: _every(each.options) for each in parts.named_evaluations}
        self._file = None if folder is None else StepLines(folder / FILE)
        self._total_steps = total_steps

    def __bool__(self) -> bool:
        return bool(self._built)

    @cached_property
    def subject(self) -> LiveSubject:
        """The run's model; it is made for the first that asks, since a run without evaluations needs none."""
        return self._make_subject()

    def cut_back(self, *, trained: int, evaluated: int) -> None:
        """See ``StepFile``."""
        if self._file is not None:
            self._file.cut_back(evaluated)

    def figures(self, step: int, number: int) -> dict[str, float]:
        """Return the figures of those that are due at the ``number``-th evaluation of the run; all are after its last step. Collective.

        Raises ``EvaluationStopped`` when a wish to stop came first; then nothing is written. Raises ``ComponentError`` for a figure that
        two of them give.
        """
        names = [name for name in self._built if number % self._every[name] == 0 or step == self._total_steps]
        answers = [ask(name, self._built[name], self.subject) for name in names]
        if self._file is not None:
            self._file.append(without_nan({"step": step, **answer.as_dict()}) for answer in answers)
        figures: dict[str, float] = {}
        for answer in answers:
            prefix = figure_prefix(answer.name)
            own = {f"{prefix}{name}": value for name, value in answer.findings.figures.items()}
            refuse_twice(f"evaluation {answer.name}", own, figures)
            figures |= own
        return share_figures(figures)

    def close(self) -> None:
        """Write what could not be written so far."""
        if self._file is not None:
            self._file.close()


def _refuse_stops(name: str, stop: Sequence[str], tokenizer: Tokenizer) -> None:
    try:
        special_stops(stop, tokenizer)
    except UsageError as error:
        raise UsageError(f"evaluations.{name}: {error}") from error


def _every(options: MtConfig) -> int:
    assert isinstance(options, EvaluationConfig), "EvaluationComponent refuses any other config"
    return options.every


def refuse_twice(whose: str, figures: Mapping[str, float], known: Mapping[str, float]) -> None:
    """Raise ``ComponentError`` for a figure that the record of this evaluation has already."""
    if twice := sorted(figures.keys() & known.keys()):
        raise ComponentError(
            f"{whose} gives {', '.join(twice)}, which the evaluation has already; name one of them otherwise, or leave it out"
        )


def share_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of rank 0 on every rank, which all decide by. Collective."""
    content: dict[str, float] = json.loads(
        share_text(json.dumps({name: float(value) for name, value in figures.items()}))
    )
    return content
