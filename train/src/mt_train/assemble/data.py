"""Tokenizer, objective and rows of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any

from mt_core.data.text_ids import begin_ids, continuation_encoder
from mt_core.errors import DataError
from mt_core.evaluation import Evaluation
from mt_core.model_protocols import Objective
from mt_core.protocols import Stream, Template, Tokenizer
from mt_train.assemble.embedding_rows import check_size, more_rows
from mt_train.assemble.encoder import Encoder, cached_files
from mt_train.assemble.identity import tokenizer_digest
from mt_train.assemble.media import media_reader, media_rules, run_template
from mt_train.assemble.parts import Parts
from mt_train.assemble.source_losses import sources_of
from mt_train.assemble.sources import evaluated_rows, evaluation_of, read_whole, rows_of
from mt_train.assemble.stream import open_blocks, refuse_for_streams
from mt_train.config.run import RunConfig
from mt_train.config.unused import describe_unused
from mt_train.data.encoding import Rules, encode
from mt_train.data.findings import findings, refuse_findings
from mt_train.data.loader import HeldOut, Loader
from mt_train.data.measures import compare, count_duplicates, fill_ratios, measure, row_of_id
from mt_train.data.samples import EncodedSamples
from mt_train.data.special_texts import special_tokens_of
from mt_train.data.stream.blocks import Blocks
from mt_train.data.stream.loader import StreamLoader
from mt_train.engine.plan import Plan
from mt_train.engine.processes import Process
from mt_train.tracking.logs import first_notice


@dataclass(frozen=True)
class RunData:
    """Encoded rows of a run."""

    tokenizer: Tokenizer
    objective: Objective
    train: EncodedSamples
    held_out: EncodedSamples
    stream: Blocks | None = None
    """All of a stream, of which ``train`` is the first block; ``None`` for rows that are kept."""
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """Evaluations of the run, by name, which have looked at rows of their own."""

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """The identity of the training rows, of the tokenizer that made them, and of held-out rows; read by whoever saves or resumes."""
        own = {"tokenizer": tokenizer_digest(self.tokenizer), "held_out": self.held_out.fingerprint()["sha256"]}
        return self.train.fingerprint() | own

    @property
    def findings(self) -> list[str]:
        """The warnings of the rows' reports, a line each."""
        return [*findings(self.train.report, "training"), *findings(self.held_out.report, "held out")]


def build_tokenizer(parts: Parts) -> Tokenizer:
    """The run's tokenizer. Raises ``ConfigError`` when it is larger than the model's embedding."""
    check_size(parts, tokenizer := parts.tokenizer)
    return tokenizer


def build_data(parts: Parts) -> RunData:
    """Read, encode and check every row. Raises ``DataError`` for a bad row, and when nothing is left to train on."""
    data = read_data(parts, training=True)
    check_data(parts.config, data)
    return data


def read_data(parts: Parts, *, training: bool = False) -> RunData:
    """Read and encode every row, or open them from the cache, and count what became of them; of a stream the first ones.

    Raises ``DataError`` for a bad row, and ``ConfigError`` for what a stream cannot do; ``training`` asks for more of it.
    """
    config, tokenizer = parts.config, build_tokenizer(parts)
    files = cached_files(parts)
    source = parts.rows("train") if files is None else None  # others are opened where they are not in the cache
    objective, rules = encoding_of(parts, tokenizer)
    for line in describe_unused(config, is_stream=isinstance(source, Stream)):
        first_notice(f"notice: {line}")
    if isinstance(source, Stream):
        refuse_for_streams(config, training=training)
        return with_measures(config, _stream(parts, source, tokenizer, objective, rules))
    rows = cache(partial(rows_of, parts, source))
    encoded = Encoder(parts, tokenizer, objective, rules, files)
    train = encoded("train", lambda: (rows().train, rows().kept))
    if train.report.rows_read == 1 and rows().is_one_document:
        train, out = train.split_off(float(config.data.eval or 0.0))
        measure(train, rules, ends=not len(out))
        measure(out, rules, begins=False)
    else:
        out = encoded("held_out", lambda: (rows().evaluation, rows().held_out))
    return with_measures(config, RunData(tokenizer, objective, train, out))


def with_measures(config: RunConfig, data: RunData) -> RunData:
    """Add to the reports what only whole splits show, and what depends on the rows of a batch. Returns ``data``."""
    seed, together = config.train.seed, config.train.rows_at_a_time
    for part in (data.train, data.held_out):
        if part.report.known is None:
            count_duplicates(part)
        part.report.filled = fill_ratios(
            part,
            sequence_len=config.train.sequence_len,
            rows_at_a_time=together,
            seed=seed,
            packing=config.data.packing,
            most_features=config.data.packing_features,
            pad_multiple=config.data.pad_multiple,
        )
    compare(data.train, data.held_out)
    return data


def _stream(parts: Parts, source: Stream, tokenizer: Tokenizer, objective: Objective, rules: Rules) -> RunData:
    """The first block of a stream, and what is held out: other rows, or the first ones."""
    config, evaluation = parts.config, evaluation_of(parts)
    count = 0 if evaluation is not None else int(config.data.eval or 0)
    check = partial(_check_ids, config)
    blocks = open_blocks(config, source, objective, rules, held_out=count, check=check)
    if evaluation is None:
        return RunData(tokenizer, objective, blocks.first.samples, blocks.held_out, blocks)
    out = encode(evaluation, evaluated_rows(config, evaluation), objective, rules)
    return RunData(tokenizer, objective, blocks.first.samples, out, blocks)


def check_data(config: RunConfig, data: RunData) -> None:
    """Raise ``DataError`` when the rows cannot be trained on, or with ``data.strict`` should not."""
    _require_rows(data.train, "train")
    if isinstance(config.data.eval, str):
        _require_rows(data.held_out, "evaluate")
    _check_ids(config, data.train, data.held_out)
    if config.data.strict:
        refuse_findings(data.findings)


def build_held_out(parts: Parts, tokenizer: Tokenizer) -> tuple[Objective, EncodedSamples]:
    """The rows that the run holds out, without encoding the others. There may be none."""
    config, source = parts.config, parts.rows("train")
    objective, rules = encoding_of(parts, tokenizer)
    if isinstance(source, Stream):
        refuse_for_streams(config, training=False)
        out = _stream(parts, source, tokenizer, objective, rules).held_out
        _check_ids(config, out)
        return objective, out
    rows = rows_of(parts, source)
    if rows.is_one_document:
        data = build_data(parts)
        return data.objective, data.held_out
    encoded = Encoder(parts, tokenizer, objective, rules, cached_files(parts))
    samples = encoded("held_out", lambda: (rows.evaluation, rows.held_out))
    _check_ids(config, samples)
    return objective, samples


def build_evaluation(parts: Parts, tokenizer: Tokenizer) -> tuple[Objective, EncodedSamples]:
    """Every row of the dataset (up to ``eval.limit``), for evaluation: those of its own evaluation split where it has one."""
    config = parts.config
    source = parts.rows("eval")
    if source is None:
        source = parts.rows("train")
    if source is None:
        raise DataError(f"dataset {config.dataset.name!r} has no rows to evaluate on")
    dataset = read_whole(config, source)
    objective, rules = encoding_of(parts, tokenizer)
    encoded = Encoder(parts, tokenizer, objective, rules, cached_files(parts))
    samples = _require_rows(encoded("every", lambda: (dataset, evaluated_rows(config, dataset))), "evaluate")
    _check_ids(config, samples)
    return objective, samples


def encoding_of(parts: Parts, tokenizer: Tokenizer) -> tuple[Objective, Rules]:
    """Build the objective, which encodes rows, and the rules that hold for all of them."""
    template = run_template(parts, tokenizer)
    objective = parts.objective(tokenizer, template)
    return objective, replace(
        _rules(parts.config, tokenizer, template), media=media_rules(parts), reader=media_reader(parts)
    )


def _require_rows(samples: EncodedSamples, purpose: str) -> EncodedSamples:
    """Return the samples. Raises ``DataError`` when there are none."""
    if not len(samples):
        report = samples.report
        reasons = [
            f"{count} × {reason}" + (f" ({', '.join(report.places[reason])})" if reason in report.places else "")
            for reason, count in report.rows_dropped.items()
        ]
        why = "\n  ".join([", ".join(reasons) or "none", *report.bad_rows[:3]])
        raise DataError(f"no row is left to {purpose} on: {report.rows_read} read, dropped {why}\n{_AGAIN}")
    return samples


_AGAIN = (
    "Repair the rows, or change what drops them; `mt-data inspect` with the same keys shows what becomes of each kind"
)


def _rules(config: RunConfig, tokenizer: Tokenizer, template: Template) -> Rules:
    """Return the rules of encoding. Where a stop is a text of several tokens, the template vouches for it, and a cut keeps as many."""
    data, stop_text = config.data, template.stop_text
    eos = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
    begin = begin_ids(tokenizer)
    assert data.max_len is not None, "resolve() fills it"
    assert data.truncation is not None, "resolve() fills it"
    return Rules(
        columns=data.columns,
        max_len=data.max_len,
        max_source_len=data.max_source_len,
        max_target_len=data.max_target_len,
        truncation=data.truncation,
        on_bad_row=data.on_bad_row,
        max_bad_rows=data.max_bad_rows,
        special_texts=special_tokens_of(tokenizer),
        forms_differ=data.template is None and data.system is None,
        bos_id=begin[0] if begin else tokenizer.bos_id,
        begins=bool(begin),
        stop_ids=frozenset(() if stop_text else {*eos, *template.stop_ids}),
        stop_tokens=len(continuation_encoder(tokenizer)(stop_text)) if stop_text else 0,
    )


def _check_ids(config: RunConfig, *splits: EncodedSamples) -> None:
    rows = config.model.options.vocab_size
    for samples in splits:
        highest = samples.report.highest_id
        if highest >= rows:
            raise DataError(
                f"{row_of_id(samples, highest)}: token id {highest}, and the model's embedding has only {rows} rows (ids below"
                f" {rows}). {more_rows(config, highest + 1)}, or choose the tokenizer that belongs to the model"
            )


def make_loader(config: RunConfig, data: RunData, plan: Plan, process: Process) -> Loader:
    """The training rows as optimizer steps."""
    options = loader_options(config, plan, process)
    if data.stream is not None:
        return StreamLoader(data.stream, data.objective, **options)
    return Loader(data.train, data.objective, sources=sources_of(data.train, data.objective), **options)


def loader_options(config: RunConfig, plan: Plan, process: Process) -> dict[str, Any]:
    """Return how the rows of a run become batches of this rank."""
    return {
        "sequence_len": config.train.sequence_len,
        "packing": config.data.batching == "packing",
        "fit": config.data.packing,
        "most_features": config.data.packing_features,
        "pad_multiple": config.data.pad_multiple,
        "micro_batch_size": plan.micro_batch_size,
        "global_batch_size": plan.global_batch_size,
        "rank": plan.data_rank(process.rank),
        "world": plan.data_ranks,
        "part": plan.part(process.rank),
        "reads_media": plan.embeds(process.rank),
        "seed": config.train.seed,
        "shuffle": config.data.shuffle,
        "group_by_length": config.data.group_by_length,
    }


def make_held_out(config: RunConfig, data: RunData, plan: Plan, process: Process) -> HeldOut | None:
    """The held-out rows as batches; ``None`` when nothing is held out."""
    if not len(data.held_out):
        return None
    return HeldOut(
        data.held_out,
        data.objective,
        sequence_len=config.train.sequence_len,
        packing=config.data.batching == "packing",
        fit=config.data.packing,
        most_features=config.data.packing_features,
        pad_multiple=config.data.pad_multiple,
        batch_size=config.eval.batch_size or plan.micro_batch_size,
        rank=plan.data_rank(process.rank),
        world=plan.data_ranks,
        part=plan.part(process.rank),
        reads_media=plan.embeds(process.rank),
    )
