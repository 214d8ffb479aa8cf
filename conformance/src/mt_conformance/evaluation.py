"""Conformance of an evaluation: the same findings each time and on every layout, and no trace but its own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_conformance import tiny, trainer
from mt_conformance.base import BasePluginConformance
from mt_conformance.host import hermetic_host
from mt_conformance.launch import Case, Result
from mt_conformance.layouts import WHOLE, no_error, on_two, parallel_section, small_run
from mt_conformance.weights import fill_weights
from mt_core.errors import MtError
from mt_core.evaluation import (
    Continuation,
    Evaluation,
    EvaluationComponent,
    Findings,
    Score,
    TokenValues,
    figure_prefix,
)
from mt_core.generation import Generation, GenerationConfig
from mt_core.plugins.host import PluginHost
from mt_core.rows import Encoded, Row, Sample

WITHOUT_TEXTS = frozenset({"zero3", "pipeline", "sequence"})
"""Layouts on which no process can write a text by itself."""


class BaseEvaluationConformance(BasePluginConformance):
    """Checks of an evaluation. ``options_in`` writes a few questions (2 to 20) into files; the kit's tiny model answers them.

    ``launches = False`` leaves the launch out, where a suite of your own covers it.
    """

    kind = "evaluation"
    launches: bool = True
    max_seq_len: int = 4096
    """Context of the model that is asked (tokens; a byte is a token)."""
    tolerance: float = 1e-4
    """How far a figure may be from that of one process: another order of summation."""

    # ------------------------------------------------------------------------------------------------ what is tested

    def run(self, host: PluginHost, folder: Path) -> dict[str, Any]:
        """The config of a small run that names it, evaluated every two steps."""
        options = dict(self.values_in(host, folder))
        model = {"name": tiny.NAME, "max_seq_len": self.max_seq_len}
        usual = {"eval": {"every_steps": 2, "samples": 0}, "log": {"every_steps": 1}}
        return small_run(**usual, model=model, evaluations={self.name: options})

    def declared_component(self, host: PluginHost) -> EvaluationComponent:
        """The component, which says what it needs."""
        component = self.component(host)
        assert isinstance(component, EvaluationComponent), "the host checks what mt_evaluations returns"
        return component

    def parts(self, folder: Path) -> trainer.Parts:
        """The parts of the small run, of which the evaluation is built."""
        host = hermetic_host(tiny, self.plugin)
        return trainer.Parts.of(trainer.resolve(self.run(host, folder), host))

    def evaluation(self, parts: trainer.Parts) -> Evaluation:
        """Build the evaluation as a run does."""
        (built,) = parts.evaluations().values()
        return built

    def subject(self, parts: trainer.Parts) -> RecordingSubject:
        """The kit's model, with the values of this seed, and a record of what it is asked."""
        tokenizer = parts.tokenizer
        model = fill_weights(parts.model(), wide=True).eval()
        eos_ids = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
        loaded = trainer.LoadedModel(model, tokenizer, self.max_seq_len, eos_ids)
        return RecordingSubject(trainer.loaded_subject(parts, loaded, batch_size=2))

    def findings(self, evaluation: Evaluation, subject: Any) -> Findings:
        """Ask. Raises ``AssertionError`` for what it raises, and for what are no findings."""
        try:
            return trainer.ask(self.name, evaluation, subject).findings
        except MtError as error:
            raise AssertionError(
                f"it ended with {type(error).__name__}: {error}. With the options of this test it has to answer; `max_seq_len`"
                f" ({self.max_seq_len}) is the context of the model that it asks"
            ) from error

    def launch_cases(self, host: PluginHost, folder: Path) -> Mapping[str, Case]:
        if not self.launches:
            return {}
        raw, layouts = self.run(host, folder), self.layouts(host)
        return {WHOLE: Case(raw={**raw, "parallel": parallel_section(layouts)}), **on_two(raw, layouts)}

    def layouts(self, host: PluginHost) -> frozenset[str]:
        """Return the declared layouts; where it needs texts, those that can write them."""
        component = self.declared_component(host)
        return frozenset(component.layouts) - (WITHOUT_TEXTS if "texts" in component.needs else frozenset())

    # ------------------------------------------------------------------------------------------------------ checks

    def test_it_finds_the_same_each_time(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Running twice, or building it again, gives the same findings, since figures of steps and runs are compared."""
        trainer.require()
        parts = self.parts(tmp_path)
        evaluation, subject = self.evaluation(parts), self.subject(parts)
        first = content_of(self.findings(evaluation, subject))
        for what, other in (("asked again", evaluation), ("built anew", self.evaluation(parts))):
            found = content_of(self.findings(other, subject))
            differ = [name for name in first if found[name] != first[name]]
            assert not differ, (
                f"{what}, it has other {differ[0]}: {one_line(found[differ[0]])}, and at first {one_line(first[differ[0]])}. Findings"
                " follow from options, rows and answers alone: keep nothing of a run for the next, and draw from a generator"
                " that a seed of your options makes"
            )

    def test_random_generators_are_as_they_were(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """It does not change the random generators of torch, numpy and Python, which training uses."""
        trainer.require()
        parts = self.parts(tmp_path)
        evaluation, subject = self.evaluation(parts), self.subject(parts)
        before = generators()
        self.findings(evaluation, subject)
        moved = [name for name, state in generators().items() if state != before[name]]
        assert not moved, (
            f"after it the random generator of {' and '.join(moved)} is another. Draw from one of your own:"
            " random.Random(seed), numpy.random.default_rng(seed), torch.Generator().manual_seed(seed)"
        )

    def test_its_findings_can_be_written(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Names of figures match ``[a-z0-9_]``, figures are numbers, groups and rows are JSON."""
        trainer.require()
        parts = self.parts(tmp_path)
        found = self.findings(self.evaluation(parts), self.subject(parts))
        assert found.figures, "it has no figures, so nothing of it goes into the record; give one at least"
        groups = {f"group {group}, ": figures for group, figures in found.groups.items()}
        for where, figures in {"": found.figures, **groups}.items():
            wrong = [name for name, value in figures.items() if type(value) not in (int, float)]
            assert not wrong, (
                f"{where}figure {wrong[0]} is {figures[wrong[0]]!r} ({type(figures[wrong[0]]).__name__}); a figure is a float:"
                " write float(…) around it"
            )
        for what, content in (("signatures", dict(found.signatures)), ("notes", list(found.notes))):
            texts = content.values() if isinstance(content, dict) else content
            assert all(isinstance(text, str) for text in texts), f"{what} are {content!r}; they are texts"
        for number, row in enumerate(found.rows):
            try:
                json.dumps(dict(row))
            except (TypeError, ValueError) as error:
                raise AssertionError(
                    f"row {number} of the findings is no JSON ({error}), so `mt-eval --predictions` cannot write it: {one_line(row)}"
                ) from error

    def test_it_asks_for_what_it_declares(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """It calls only what ``needs`` declares, since not every layout can generate texts."""
        trainer.require()
        parts = self.parts(tmp_path)
        subject, needs = self.subject(parts), self.declared_component(mt_host).needs
        self.findings(self.evaluation(parts), subject)
        assert subject.asked, "it asked the model nothing; the options of this test need a few questions"
        assert subject.asked == needs, (
            f"it asked for {' and '.join(sorted(subject.asked))}, and declares needs={sorted(needs)}. score and token_values are"
            " scores, generate is texts: name what it asks for, and nothing else"
        )

    def test_a_dry_run_counts_what_it_asks(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """It runs in ``mt-eval --dry-run``, without a model: each target has log-probability 0, each text is empty."""
        trainer.require()
        parts = self.parts(tmp_path)
        subject = trainer.paper_subject(parts)
        on_paper = self.findings(self.evaluation(parts), subject)
        assert subject.requests, (
            "without a model it asked for nothing, so `mt-eval --dry-run` counts nothing; ask before you look at answers"
        )
        names = sorted(self.findings(self.evaluation(parts), self.subject(parts)).figures)
        assert sorted(on_paper.figures) == names, (
            f"without a model it has the figures {sorted(on_paper.figures)}, and with one {names}; figures have the same names"
            " whatever is answered, so that a run can go by them"
        )

    @pytest.mark.mt_launch
    def test_every_layout_gives_the_figures_of_one_process(
        self, mt_host: PluginHost, mt_launched: Mapping[str, Result]
    ) -> None:
        """Evaluations during training have equal figures in one process, and in two on the declared ``layouts``."""
        if not mt_launched:
            pytest.skip("no launch: launches = False")
        start = figure_prefix(self.name)
        whole = figures_of(no_error(mt_launched[WHOLE], "one process"), start)
        assert whole, f"a small run has no figure {start}… in its record"
        for layout in sorted(mt_launched.keys() - {WHOLE}):
            found = figures_of(no_error(mt_launched[layout], f"two processes with {layout}"), start)
            assert found.keys() == whole.keys(), (
                f"with {layout} the record has {', '.join(sorted(found)) or 'no figure'}, and {', '.join(sorted(whole))} on one process"
            )
            for name, values in whole.items():
                apart = [
                    (one, two) for one, two in zip(values, found[name], strict=True) if not self.is_close(one, two)
                ]
                assert not apart, (
                    f"with {layout}, {name} is {apart[0][1]!r}, and {apart[0][0]!r} on one process (allowed: {self.tolerance:g})."
                    " An evaluation has no rank and no device in it: each process asks the same in the same order, and gets"
                    " all answers"
                )

    def is_close(self, one: float, two: float) -> bool:
        """Tell whether two figures are within ``tolerance``, absolute below 1; two that are no numbers are equal."""
        both_none = math.isnan(one) and math.isnan(two)
        return both_none or math.isclose(one, two, rel_tol=self.tolerance, abs_tol=self.tolerance)


class RecordingSubject:
    """A subject that keeps what it is asked for: ``scores``, ``texts``."""

    def __init__(self, subject: trainer.LoadedSubject) -> None:
        self._subject = subject
        self.tokenizer, self.template, self.texts = subject.tokenizer, subject.template, subject.texts
        self.max_seq_len, self.eos_ids = subject.max_seq_len, subject.eos_ids
        self.asked: set[str] = set()

    @property
    def requests(self) -> int:
        """Everything that was asked for."""
        return self._subject.requests

    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        """See ``Subject``."""
        self.asked |= {"scores"} if len(requests) else set()
        return self._subject.score(requests)

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        """See ``Subject``."""
        self.asked |= {"scores"} if len(samples) else set()
        return self._subject.token_values(samples, top=top)

    def generate(self, prompts: Sequence[Sequence[int] | Encoded], config: GenerationConfig) -> list[Generation]:
        """See ``Subject``."""
        self.asked |= {"texts"} if len(prompts) else set()
        return self._subject.generate(prompts, config)

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        """See ``Subject``."""
        return self._subject.encode(rows)

    def prepare(self, row: Row) -> Row:
        """See ``Subject``."""
        return self._subject.prepare(row)


def content_of(found: Findings) -> dict[str, Any]:
    """Everything that findings say, to be compared."""
    return {
        "figures": {name: repr(value) for name, value in found.figures.items()},
        "groups": {group: {name: repr(value) for name, value in each.items()} for group, each in found.groups.items()},
        "signatures": dict(found.signatures),
        "notes": list(found.notes),
        "rows": [repr(dict(row)) for row in found.rows],
    }


def generators() -> dict[str, str]:
    """Return the states of the random generators of this process, as text."""
    tensors, numbers = trainer.random_tensors(torch.device("cpu")), trainer.random_numbers()
    return {
        "torch": repr(tensors["rng::torch"].tolist()),
        "numpy": repr([tensors["rng::numpy"].tolist(), numbers["numpy"]]),
        "Python": repr(numbers["python"]),
    }


def figures_of(result: Result, start: str) -> dict[str, list[float]]:
    """Return the figures whose names begin so, of each step that has them."""
    names = sorted({name for record in result.records for name in record if name.startswith(start)})
    return {
        name: [float("nan") if each[name] is None else float(each[name]) for each in result.records if name in each]
        for name in names
    }


def one_line(value: Any) -> str:
    """Return a value as one line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:200]}…"
