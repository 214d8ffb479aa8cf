"""Subjects of evaluations: a loaded model, or the one of a run, with what encodes rows as the run does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

from mt_core.errors import DataError
from mt_core.model_protocols import Objective
from mt_core.protocols import Template, Tokenizer
from mt_core.rows import Row, Sample
from mt_train.assemble.data import RunData, build_tokenizer, encoding_of
from mt_train.assemble.load import end_tokens_of
from mt_train.assemble.media import media_reader, run_template
from mt_train.assemble.parts import Parts
from mt_train.data.encoding import Rules, encode
from mt_train.data.stream.reader import RowsInMemory
from mt_train.engine.engine import Engine
from mt_train.evaluate.paper import PaperSubject
from mt_train.evaluate.subject import LiveSubject, LoadedSubject
from mt_train.generation.loaded_model import LoadedModel


def loaded_subject(parts: Parts, loaded: LoadedModel, *, batch_size: int | None = None) -> LoadedSubject:
    """Return the subject of a model that was loaded; ``batch_size`` defaults to that of the run's evaluations."""
    template = loaded.template or run_template(parts, loaded.tokenizer)
    size = batch_size or parts.config.eval.batch_size or parts.config.train.rows_at_a_time
    return LoadedSubject(loaded, template, RowEncoder(parts, loaded.tokenizer), batch_size=size)


def live_subject(
    parts: Parts, data: RunData, engine: Engine, *, stop: Callable[[], bool], batch_size: int | None = None
) -> LiveSubject:
    """Return the subject of a run; it says ``EvaluationStopped`` after a wish to ``stop``. ``batch_size`` defaults to a micro-batch."""
    loaded, template = live_model(parts, data, engine)
    size = parts.config.eval.batch_size or batch_size or engine.plan.micro_batch_size
    return LiveSubject(engine, loaded, template, RowEncoder(parts, data.tokenizer), batch_size=size, stop=stop)


def live_model(parts: Parts, data: RunData, engine: Engine) -> tuple[LoadedModel, Template]:
    """Return the model of a run with all that writing with it needs, and the run's template."""
    tokenizer, options = data.tokenizer, parts.config.model.options
    template, read_media = run_template(parts, tokenizer), media_reader(parts)
    eos_ids = end_tokens_of(parts, tokenizer)
    return LoadedModel(engine.module.model, tokenizer, options.max_seq_len, eos_ids, template, read_media), template


def paper_subject(parts: Parts) -> PaperSubject:
    """Return a subject that counts what is asked of a model, which is not loaded."""
    tokenizer, options = build_tokenizer(parts), parts.config.model.options
    return PaperSubject(
        tokenizer,
        run_template(parts, tokenizer),
        RowEncoder(parts, tokenizer),
        max_seq_len=options.max_seq_len,
        eos_ids=end_tokens_of(parts, tokenizer),
    )


class RowEncoder:
    """Makes samples of rows as the run does."""

    def __init__(self, parts: Parts, tokenizer: Tokenizer) -> None:
        self._parts, self._tokenizer = parts, tokenizer

    @cached_property
    def _encoding(self) -> tuple[Objective, Rules]:
        return encoding_of(self._parts, self._tokenizer)

    def __call__(self, rows: Iterable[Row]) -> list[Sample]:
        """Return the samples. Raises ``DataError`` for a row that a run would leave out."""
        objective, rules = self._encoding
        listed = list(rows)
        samples = encode(RowsInMemory(listed), range(len(listed)), objective, rules)
        report = samples.report
        if report.rows_kept < report.rows_read:
            reasons = "; ".join(f"{count} × {reason}" for reason, count in report.rows_dropped.items())
            raise DataError(
                f"{report.rows_read - report.rows_kept} of {report.rows_read} rows cannot be evaluated: {reasons}"
            )
        return list(samples)

    def prepare(self, row: Row) -> Row:
        """Return a row as the objective gets it. Raises ``DataError``."""
        return self._encoding[1].prepare(row)[0]
