"""Models that are evaluated, each on one set of rows or under its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.errors import MtError, UsageError
from mt_core.plugins.host import PluginHost
from mt_core.tracking.logs import notice
from mt_train.assemble.adapter_slot import with_adapter
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.manifest import read_manifest
from mt_train.config.commandline import merge
from mt_train.config.run import SECTIONS
from mt_train.plugins.resolve import resolve

if TYPE_CHECKING:
    from mt_core.model_protocols import Objective
    from mt_core.protocols import Tokenizer
    from mt_train.data.samples import EncodedSamples
    from mt_train.generation.loaded_model import LoadedModel


@dataclass(frozen=True)
class Job:
    """One model on one set of rows, or (without a ``dataset``) under the evaluations that its config names.

    ``checkpoint`` is ``None`` for pretrained weights.
    """

    parts: Parts
    checkpoint: Path | None
    dataset: str | None
    held_out: bool = False

    @property
    def model(self) -> str:
        """Return the model's name in the table."""
        source = self.parts.config.model.source
        adapter = source.overlay or self.parts.config.adapter.source.weights
        over = f" + {adapter}" if adapter else ""
        return self.checkpoint.name if self.checkpoint else f"{source.weights}{over}"


def jobs_of(
    checkpoint: Path | None,
    stored: Mapping[str, Any],
    asked: Mapping[str, Any],
    host: PluginHost,
    sets: Sequence[tuple[str, Mapping[str, Any]]] = (),
    *,
    adapter: Path | None = None,
) -> Iterator[Job]:
    """Yield what is asked of one model: ``sets`` of rows by label, the evaluations that ``asked`` names, its rows, or those held out.

    ``stored`` is the model's config, ``asked`` what counts over it, ``adapter`` a folder over both. Raises ``UsageError`` where there
    are no rows.
    """
    named = asked.get("evaluations", {})
    raw = merge(_without_unused(stored, asked, host), asked, host.kinds)
    if merged := raw.pop("evaluations", {}):  # of the run's own those that are named, with its options
        raw["evaluations"] = {name: options for name, options in merged.items() if name in named}
    if adapter is not None:
        raw = with_adapter(raw, adapter, host)
    whole = _without_limit(raw, asked)
    for label, dataset in sets:
        yield Job(Parts.of(resolve({**whole, "dataset": dataset}, host, trains=False)), checkpoint, label)
    if named:
        yield Job(Parts.of(resolve(raw, host, trains=False)), checkpoint, None)
    if not sets and ("dataset" in asked or not named):
        held_out = "dataset" not in asked
        known = {*host.kinds.slots, *host.kinds.lists, *SECTIONS}
        if held_out and checkpoint is None and known.issuperset(asked):  # a key that is unknown may be what was meant
            raise UsageError(
                "--weights has no held-out rows: name some with --dataset NAME or --on LABEL=NAME:PATH, or what to ask"
                " with --evaluations NAME"
            )
        parts = Parts.of(resolve(raw if held_out else whole, host, trains=False))
        label = "held out" if held_out else parts.config.dataset.name
        yield Job(parts, checkpoint, label, held_out)


def _without_limit(raw: Mapping[str, Any], asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config without a run's ``eval.limit``, which is for the rows that it holds out; one that is asked for stays."""
    section = raw.get("eval")
    if not isinstance(section, Mapping) or "limit" in (asked.get("eval") or ()):
        return raw
    return {**raw, "eval": {key: value for key, value in section.items() if key != "limit"}}


def _without_unused(stored: Mapping[str, Any], asked: Mapping[str, Any], host: PluginHost) -> Mapping[str, Any]:
    """Return a run's config without what its objective takes and the one that is asked for does not, such as rewards."""
    both = [part.get("objective") for part in (stored, asked)]
    names = [str(each["name"]) for each in both if isinstance(each, Mapping) and "name" in each]
    if len(names) < 2:
        return stored
    try:
        of_run = host.get("objective", names[0]).component.uses
    except MtError:  # whose plugin is not here: what it took would be as unknown
        return stored
    wanted = host.get("objective", names[1]).component.uses
    dropped = {kind.key for kind in host.kinds.values() if kind.name in of_run and kind.name not in wanted}
    return {key: value for key, value in stored.items() if key not in dropped}


def measure(
    jobs: Iterable[Job], *, wanted: bool, averaged: str | None, dtype: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the results of all jobs as ``metrics.json`` has them, and the lines of ``predictions.jsonl`` where they are ``wanted``."""
    results: list[dict[str, Any]] = []
    predictions: list[dict[str, Any]] = []
    evaluate = _evaluator(wanted=wanted, averaged=averaged, dtype=dtype)
    for job in jobs:
        step = int(read_manifest(job.checkpoint)["step"]) if job.checkpoint else None
        model = job.model if averaged is None else f"{job.model}, {averaged}"
        for found, made in evaluate(job):
            results.append({"model": model, "step": step, **found})
            predictions += [{"model": model, **each} for each in made]
    return results, predictions


Results = Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]
"""Results as ``metrics.json`` has them, each with the lines of ``predictions.jsonl`` that belong to it."""


def _evaluator(*, wanted: bool, averaged: str | None, dtype: str) -> Callable[[Job], Results]:
    """Return a function from job to results, which keeps the last model, and the rows of each dataset."""
    from mt_train.assemble.data import build_evaluation, build_held_out
    from mt_train.assemble.load import load
    from mt_train.assemble.reference import held_out_with_reference
    from mt_train.evaluate.figures import Prediction, evaluate

    models: dict[Path | None, LoadedModel] = {}
    rows: dict[str, tuple[Objective, EncodedSamples]] = {}

    def rows_of(job: Job, tokenizer: Tokenizer) -> tuple[Objective, EncodedSamples]:
        assert job.dataset is not None, "evaluations have rows of their own"
        if job.dataset not in rows:
            objective, samples = (build_held_out if job.held_out else build_evaluation)(job.parts, tokenizer)
            if job.held_out and job.checkpoint is not None:
                samples = held_out_with_reference(objective, samples, job.checkpoint)
            rows[job.dataset] = objective, samples
        objective, samples = rows[job.dataset]
        if not len(samples):
            raise UsageError("the run holds out no rows; name some with --dataset NAME or --on LABEL=NAME:PATH")
        return objective, samples

    def run(job: Job) -> Results:
        if job.checkpoint not in models:
            models.clear()
            models[job.checkpoint] = load(job.parts, job.checkpoint, notice, averaged=averaged, dtype=dtype)
        loaded, config = models[job.checkpoint], job.parts.config
        if job.dataset is None:
            yield from _answers(job.parts, loaded, rows=wanted)
            return
        objective, samples = rows_of(job, loaded.tokenizer)
        made: list[Prediction] = []
        figures = evaluate(
            loaded.model,
            objective,
            samples,
            loaded.tokenizer,
            batch_size=config.eval.batch_size or config.train.rows_at_a_time,
            on_prediction=made.append if wanted else None,
        )
        content = {"dataset": job.dataset, **figures.as_dict()}
        yield content, [{"dataset": job.dataset, **asdict(prediction)} for prediction in made]

    return run


def _answers(parts: Parts, loaded: LoadedModel, *, rows: bool) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield what each evaluation found, as ``metrics.json`` has it, and its ``rows`` where they are wanted."""
    from mt_train.assemble.evaluations import ask
    from mt_train.assemble.subjects import loaded_subject

    subject = loaded_subject(parts, loaded)
    for name, evaluation in parts.evaluations().items():
        answer = ask(name, evaluation, subject)
        own = [{"evaluation": name, **row} for row in answer.findings.rows] if rows else []
        yield answer.as_dict(), own
