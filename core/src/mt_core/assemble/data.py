"""Tokenizer, objective and rows of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from numpy.typing import NDArray

from mt_core.assemble.encoder import Encoder
from mt_core.config.run import RunConfig
from mt_core.data.encoded import EncodedSamples
from mt_core.data.encoding import Rules
from mt_core.data.loader import HeldOut, Loader
from mt_core.data.order import held_out
from mt_core.data.templates import build_template
from mt_core.engine.plan import Plan
from mt_core.engine.processes import Process
from mt_core.errors import ConfigError, DataError, Fault
from mt_core.plugins.resolve import Resolved
from mt_core.protocols import Dataset, Objective, Stream, Tokenizer


@dataclass(frozen=True)
class RunData:
    """Encoded rows of a run."""

    tokenizer: Tokenizer
    objective: Objective
    train: EncodedSamples
    held_out: EncodedSamples


def build_tokenizer(resolved: Resolved) -> Tokenizer:
    """The run's tokenizer. Raises ``ConfigError`` when it is larger than the model's embedding."""
    config = resolved.config
    tokenizer: Tokenizer = resolved.build("tokenizer", config.tokenizer.options)
    rows = config.model.options.vocab_size
    if tokenizer.size > rows:
        raise ConfigError(
            [
                Fault(
                    key="tokenizer",
                    problem=f"{config.tokenizer.name} has {tokenizer.size} tokens, and the model's embedding only {rows} rows.",
                    fix=f"Set --model.vocab-size {tokenizer.size} or more, or choose the tokenizer that belongs to the weights.",
                )
            ]
        )
    return tokenizer


def build_data(resolved: Resolved) -> RunData:
    """Read and encode every row. Raises ``DataError`` for a bad row, and when nothing is left to train on."""
    config, rows = resolved.config, cache(partial(_rows, resolved))
    tokenizer = build_tokenizer(resolved)
    objective = _objective(resolved, tokenizer)
    encoded = Encoder(resolved, tokenizer, objective, _rules(config))
    train = _some(encoded("train", lambda: (rows().train, rows().kept)), "train")
    if train.report.rows_read == 1 and rows().is_one_document:
        train, out = train.parted(config.data.eval or 0.0)
    else:
        out = encoded("held_out", lambda: (rows().evaluation, rows().held_out))
    _check_ids(config, train, out)
    return RunData(tokenizer, objective, train, out)


def build_held_out(resolved: Resolved, tokenizer: Tokenizer) -> tuple[Objective, EncodedSamples]:
    """The rows that the run holds out, without encoding the others. There may be none."""
    config, rows = resolved.config, _rows(resolved)
    if rows.is_one_document:
        data = build_data(resolved)
        return data.objective, data.held_out
    objective = _objective(resolved, tokenizer)
    encoded = Encoder(resolved, tokenizer, objective, _rules(config))
    samples = encoded("held_out", lambda: (rows.evaluation, rows.held_out))
    _check_ids(config, samples)
    return objective, samples


def build_evaluation(resolved: Resolved, tokenizer: Tokenizer) -> tuple[Objective, EncodedSamples]:
    """Every row of the dataset, for evaluation: those of its own evaluation split where it has one."""
    config = resolved.config
    dataset = _source(resolved, "eval") or _source(resolved, "train")
    if dataset is None:
        raise DataError(f"dataset {config.dataset.name!r} has no rows to evaluate on")
    objective = _objective(resolved, tokenizer)
    encoded = Encoder(resolved, tokenizer, objective, _rules(config))
    samples = _some(encoded("every", lambda: (dataset, range(len(dataset)))), "evaluate")
    _check_ids(config, samples)
    return objective, samples


@dataclass(frozen=True)
class _Rows:
    """Which rows of which source are trained on, and which are held out."""

    train: Dataset
    kept: Sequence[int] | NDArray[Any]
    evaluation: Dataset
    held_out: Sequence[int] | NDArray[Any]
    is_one_document: bool = False
    """A source of one row holds out a part of that row."""


def _rows(resolved: Resolved) -> _Rows:
    config = resolved.config
    dataset, evaluation = _source(resolved, "train"), _source(resolved, "eval")
    if dataset is None:
        raise DataError(f"dataset {config.dataset.name!r} has no training split")
    everything, share = range(len(dataset)), config.data.eval
    if evaluation is not None:
        return _Rows(dataset, everything, evaluation, range(len(evaluation)))
    if len(dataset) == 1 and share is not None and share < 1:
        return _Rows(dataset, everything, dataset, (), is_one_document=True)
    kept, out = held_out(len(dataset), share)
    return _Rows(dataset, kept, dataset, out)


def _objective(resolved: Resolved, tokenizer: Tokenizer) -> Objective:
    template = build_template(tokenizer)
    options = resolved.config.objective.options
    objective: Objective = resolved.build("objective", options, tokenizer=tokenizer, template=template)
    return objective


def _some(samples: EncodedSamples, purpose: str) -> EncodedSamples:
    """The samples. Raises ``DataError`` when there are none."""
    if not len(samples):
        dropped = ", ".join(f"{count} × {reason}" for reason, count in samples.report.rows_dropped.items())
        raise DataError(f"no row is left to {purpose} on: {samples.report.rows_read} read, dropped {dropped or 'none'}")
    return samples


def _rules(config: RunConfig) -> Rules:
    data = config.data
    assert data.max_len is not None, "resolve() fills it"
    assert data.truncation is not None, "resolve() fills it"
    return Rules(columns=data.columns, max_len=data.max_len, truncation=data.truncation)


def _source(resolved: Resolved, split: str) -> Dataset | None:
    source: Dataset | None = resolved.build("dataset", resolved.config.dataset.options, split=split)
    if isinstance(source, Stream):
        raise DataError(
            f"dataset {resolved.config.dataset.name!r} is a stream, which this version cannot train on yet;"
            " use a map-style dataset"
        )
    return source


def _check_ids(config: RunConfig, *splits: EncodedSamples) -> None:
    highest, rows = max(samples.highest_id for samples in splits), config.model.options.vocab_size
    if highest >= rows:
        raise DataError(f"the rows contain token id {highest}, and the model's embedding has only {rows} rows")


def make_loader(config: RunConfig, data: RunData, plan: Plan, process: Process) -> Loader:
    """The training rows as optimizer steps."""
    return Loader(
        data.train,
        data.objective,
        sequence_len=config.train.sequence_len,
        packing=config.data.batching == "packing",
        micro_batch_size=plan.micro_batch_size,
        global_batch_size=plan.global_batch_size,
        rank=plan.data_rank(process.rank),
        world=plan.data_ranks,
        part=plan.part(process.rank),
        seed=config.train.seed,
        shuffle=config.data.shuffle,
        group_by_length=config.data.group_by_length,
    )


def make_held_out(config: RunConfig, data: RunData, plan: Plan, process: Process) -> HeldOut | None:
    """The held-out rows as batches; ``None`` when nothing is held out."""
    if not len(data.held_out):
        return None
    return HeldOut(
        data.held_out,
        data.objective,
        sequence_len=config.train.sequence_len,
        packing=config.data.batching == "packing",
        batch_size=config.eval.batch_size or plan.micro_batch_size,
        rank=plan.data_rank(process.rank),
        world=plan.data_ranks,
        part=plan.part(process.rank),
    )
