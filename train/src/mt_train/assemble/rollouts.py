"""Iterations of a run whose objective learns from answers of its own model: collected, written down, learned from.

An iteration is a small data set. Its answers are the same on every layout, and lie in ``rollouts.jsonl``: a run that was stopped
between two steps of an iteration reads them there, and one that was stopped while they were collected collects them again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mt_core.errors import CheckpointError, ConfigError, DataError, Fault, UsageError
from mt_core.rows import Row, Sample
from mt_core.tracking.step_lines import StepLines
from mt_train.assemble.agreement import act_together
from mt_train.assemble.data import RunData, loader_options
from mt_train.assemble.parts import Parts
from mt_train.assemble.policy import LivePolicy
from mt_train.assemble.recorded_answers import RecordedAnswers
from mt_train.assemble.rows_by_id import RowsById
from mt_train.assemble.run_length import Iterations
from mt_train.data.loader import Loader, Position, WaitingEnded, Window
from mt_train.data.online import CollectsAnswers, ComparesAnswers, Prompt, Record, ReplaysAnswers, TellsSeconds
from mt_train.data.order import permutation
from mt_train.data.samples import EncodedSamples
from mt_train.engine.compilation import run_uncompiled
from mt_train.engine.engine import Engine
from mt_train.engine.processes import share_text
from mt_train.engine.random_state import preserve_random_state
from mt_train.evaluate.subject import EvaluationStopped

if TYPE_CHECKING:
    from mt_core.nn import Batch

FILE = "rollouts.jsonl"
AT_ONCE = 64
"""Answers that each rank writes at once where ``eval.batch_size`` does not say: a token costs about the same for one and for many."""
ALL_ROWS = 1 << 62
"""Rows of a step: all that there are."""


class RolloutLoader(Loader):
    """Loader of iterations. A position is an epoch of prompts, the first prompt of an iteration, and a step of it (``block``)."""

    def __init__(
        self,
        data: RunData,
        engine: Engine,
        rows: Callable[[str], Row],
        make_policy: Callable[[], LivePolicy],
        folder: Path | None,
        **options: Any,
    ) -> None:
        objective = data.objective
        assert isinstance(objective, CollectsAnswers), "make_rollouts() is asked for no other"
        super().__init__(data.train, objective, **options)
        self._options, self._online, self._engine, self._rows = options, objective, engine, rows
        self._length = Iterations(objective, len(data.train))
        self._make_policy = make_policy
        self._last: tuple[int, Sequence[Record]] = -1, ()
        self._path = None if folder is None else folder / FILE
        replay = objective.replay if isinstance(objective, ReplaysAnswers) else None
        self._own = None if self._path is None else RecordedAnswers(self._path)
        self._recorded = None if replay is None else RecordedAnswers(replay.expanduser() / FILE)
        self._file = StepLines(self._path) if self._path is not None and engine.process.is_main else None

    def steps_in(self, epochs: float) -> int:
        """See ``Loader``: so many passes over the prompts."""
        return self._length.steps_in(epochs)

    def has(self, position: Position) -> bool:
        """See ``Loader``."""
        return (
            position.row % self._online.prompts == 0
            and position.row < len(self.samples)
            and position.block < self._length.steps
        )

    def windows(self, position: Position, stop: Callable[[], bool] = lambda: False) -> Iterator[Window]:
        """Optimizer steps from ``position`` on. Raises ``WaitingEnded`` for the subject's wish to stop while answers are collected."""
        while True:
            records, seconds = self._records(position)
            samples, figures = self._online.learn(records)
            self._refuse_long(samples)
            names = [sample.row_id for sample in samples]
            iteration, epoch = self._iteration(position), position.epoch
            for number in range(position.block, self._length.steps):
                position = self._after(position, number)
                first = seconds if number == 0 else {}  # so that their sum is what all iterations took
                passes = (iteration + (number + 1) / self._length.steps) / self._length.in_epoch
                batches = self._batches(samples, iteration, number)
                yield Window(batches, names, position, epoch, {**figures, **first}, passes)

    def evaluate(self, held_out: Sequence[Sample]) -> dict[str, float]:
        """Return figures of answers to held-out prompts, drawn by the run's seed in each evaluation alike. Raises ``EvaluationStopped``."""
        records = self._collect(held_out, seed=self.seed, previous=())
        _, figures = self._online.learn(records)
        return {f"eval_{name}": value for name, value in figures.items()}

    def cut_back(self, *, trained: int, evaluated: int) -> None:
        """See ``StepFile``: drop answers of iterations that begin after the last step that was trained."""
        if self._file is not None:
            self._file.cut_back(trained)

    def read_from(self, run: Path) -> None:
        """Take answers of earlier steps from the folder of this run: one that is computed again has none of its own."""
        self._path = run / FILE
        self._own = RecordedAnswers(self._path)

    def close(self) -> None:
        """Write what could not be written so far."""
        if self._file is not None:
            self._file.close()

    def _iteration(self, position: Position) -> int:
        """Return the number of the iteration, from 0."""
        return position.epoch * self._length.in_epoch + position.row // self._online.prompts

    def _after(self, position: Position, number: int) -> Position:
        """Return where the step behind step ``number`` of an iteration begins."""
        if number + 1 < self._length.steps:
            return Position(position.epoch, position.row, number + 1)
        row = position.row + self._online.prompts
        return Position(position.epoch, row) if row < len(self.samples) else Position(position.epoch + 1)

    def _batches(self, samples: Sequence[Sample], iteration: int, number: int) -> list[Batch]:
        """Return this rank's micro-batches of one step: its share of the samples, in an order of its own in each pass."""
        pass_, update = divmod(number, self._online.updates)
        order = permutation(len(samples), seed=self.seed, epoch=iteration * self._online.passes + pass_, shuffle=True)
        chosen = EncodedSamples()
        for place in np.array_split(np.asarray(order), self._online.updates)[update].tolist():
            chosen.add(samples[place])
        step = Loader(chosen, self.objective, **{**self._options, "global_batch_size": ALL_ROWS, "shuffle": False})
        return next(step.windows(Position())).batches

    @cached_property
    def _policy(self) -> LivePolicy:
        """The run's model. It is made for the first answers, and has the weights of every later step as well."""
        return self._make_policy()

    def _collect(self, samples: Sequence[Sample], *, seed: int, previous: Sequence[Record]) -> list[Record]:
        """Return answers to prompts, those of rank 0 on every rank: a reward may say something else elsewhere. Collective."""
        prompts = [Prompt(self._rows(sample.row_id), [int(token) for token in sample.ids]) for sample in samples]
        self._policy.version += 1
        records = self._online.collect(prompts, self._policy, seed=seed, previous=previous)
        shared: list[Record] = json.loads(share_text(json.dumps(list(records))))
        return shared

    def _records(self, position: Position) -> tuple[Sequence[Record], Mapping[str, float]]:
        """Return the answers of an iteration, and figures of the seconds that they took. Collective."""
        iteration = self._iteration(position)
        if position.block:
            return self._keep(iteration, self._read(iteration)), {}
        began = time.perf_counter()
        try:
            with preserve_random_state(), run_uncompiled():
                records = self._find_recorded(iteration) if self._recorded else self._write(position, iteration)
        except EvaluationStopped as error:
            raise WaitingEnded from error
        if self._file is not None:
            step = iteration * self._length.steps + 1
            when = {"step": step, "iteration": iteration}  # in front, so that readers see whether they need the line
            self._file.append({**when, **record, **when} for record in records)
        seconds = {"rollout_seconds": time.perf_counter() - began}
        if isinstance(self._online, TellsSeconds) and not self._recorded:
            seconds |= {f"{name}_seconds": value for name, value in self._online.seconds.items()}
        return self._keep(iteration, records), seconds

    def _keep(self, iteration: int, records: Sequence[Record]) -> Sequence[Record]:
        """Remember the answers of an iteration, which the next one may follow from."""
        self._last = iteration, records
        return records

    def _write(self, position: Position, iteration: int) -> Sequence[Record]:
        """Return answers that the model writes now. Collective."""
        order = permutation(len(self.samples), seed=self.seed, epoch=position.epoch, shuffle=self.shuffle)
        chosen = [self.samples[int(n)] for n in order[position.row : position.row + self._online.prompts]]
        seed = int(np.random.SeedSequence([self.seed, iteration]).generate_state(1)[0])
        before, records = self._last
        previous = records if before == iteration - 1 else self._read(iteration - 1) if iteration else ()
        return self._collect(chosen, seed=seed, previous=previous)

    def _find_recorded(self, iteration: int) -> Sequence[Record]:
        """Return answers that another run wrote down. Raises ``UsageError`` on every rank where it has none. Collective."""
        assert self._recorded is not None, "it is asked for"
        if records := self._read_lines(self._recorded, iteration):
            return records
        raise UsageError(
            f"{self._recorded.path} has no answers of iteration {iteration}; train for fewer steps, or give the folder of a longer run"
        )

    def _refuse_long(self, samples: Sequence[Sample]) -> None:
        """Raise ``UsageError`` for answers that no row holds: those of another run, or of a sampler that writes more than is asked."""
        most = self._options["sequence_len"]
        longest = max(samples, key=lambda sample: len(sample.ids), default=None)
        if longest is not None and (length := len(longest.ids)) > most:
            where = "" if self._recorded is None else f" of {self._recorded.path}"
            raise UsageError(
                f"the answers{where} are too long: a sample of {longest.row_id} has {length} tokens with its prompt, and train.sequence_len"
                f" is {most}; set --train.sequence-len {length} or more, or take shorter answers"
            )

    def _read(self, iteration: int) -> Sequence[Record]:
        """Read what was written down. Raises ``CheckpointError`` on every rank where it is gone. Collective."""
        if records := self._read_lines(self._own, iteration):
            return records
        raise CheckpointError(
            f"{self._path} has no answers of iteration {iteration}, which this run goes on from. Put the file back, or start a new run"
        )

    def _read_lines(self, answers: RecordedAnswers | None, iteration: int) -> Sequence[Record]:
        """Return the answers of an iteration in a file that rank 0 reads; nothing where there are none. Collective.

        Raises ``DataError`` on every rank for a file, or a line of it, that cannot be read.
        """
        file = answers if self._engine.process.is_main else None
        found = act_together(lambda: [] if file is None else file.read(iteration), DataError)
        records: list[Record] = json.loads(share_text(json.dumps(found)))
        return records


def make_rollouts(
    parts: Parts, data: RunData, engine: Engine, folder: Path | None, *, stop: Callable[[], bool]
) -> RolloutLoader | None:
    """Return the loader of a run whose objective learns from answers of its own; ``None`` for others."""
    if not isinstance(data.objective, CollectsAnswers):
        return None
    make_policy = partial(LivePolicy, parts, data, engine, stop=stop, batch_size=AT_ONCE)
    options = loader_options(parts.config, engine.plan, engine.process)
    return RolloutLoader(data, engine, RowsById(parts), make_policy, folder, **options)


def longest_answered(data: RunData) -> int | None:
    """Return the tokens of the longest prompt with the longest answers to it; ``None`` for an objective that collects none."""
    if not isinstance(data.objective, CollectsAnswers):
        return None
    prompt = max(data.train.report.longest, data.held_out.report.longest)
    return _answers_in_sample(data) * (prompt + data.objective.max_new_tokens)


def _answers_in_sample(data: RunData) -> int:
    return data.objective.answers_in_sample if isinstance(data.objective, ComparesAnswers) else 1


def refuse_for_rollouts(parts: Parts, data: RunData) -> None:
    """Raise ``ConfigError`` for what needs rows of the dataset where these are prompts."""
    longest = longest_answered(data)
    if longest is None:
        return
    name, faults = parts.config.objective.name, []
    if data.stream is not None:
        problem = f"{name} reads prompts in an order of its own, and rows of a stream come in theirs."
        faults.append(Fault(key="dataset", problem=problem, fix="Take a dataset of files."))
    answers, trained, held_out = _answers_in_sample(data), data.train.report.longest, data.held_out.report.longest
    most = parts.config.train.sequence_len
    if data.stream is None and longest > most:
        what = f"the longest {'held-out ' if held_out > trained else ''}prompt with the longest answer to it"
        problem = f"{most} tokens, and {what if answers == 1 else f'{answers} times {what}'} has {longest}."
        fix = f"Set {longest} or more, allow shorter answers (--objective.max-new-tokens), or take shorter prompts (--data.max-len)."
        faults.append(Fault(key="train.sequence-len", problem=problem, fix=fix))
    if parts.config.train.micro_batch_size == "auto":
        problem = f"{name} learns from answers, and how long these are is not known before they are written."
        faults.append(Fault(key="train.micro-batch-size", problem=problem, fix="Give a number."))
    if faults:
        raise ConfigError(faults)
