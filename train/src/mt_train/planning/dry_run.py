"""A run on paper: everything is read and checked, nothing is started, and no weight takes memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from mt_core.errors import ConfigError, Fault, MtError
from mt_core.nn import Router
from mt_core.nn.loss import chunk_tokens
from mt_train.assemble.data import RunData, build_data, make_loader
from mt_train.assemble.description import model_title
from mt_train.assemble.evaluations import build_evaluations
from mt_train.assemble.first_loss import refuse_noise
from mt_train.assemble.own_files import files_of_components
from mt_train.assemble.parameter_names import describe_trained
from mt_train.assemble.parts import Parts
from mt_train.assemble.reach import adapter_reach, count_stored, dense_warnings
from mt_train.assemble.report import describe_held_out, example, media_parts, warnings
from mt_train.assemble.rollouts import longest_answered, refuse_for_rollouts
from mt_train.assemble.run import RunOptions
from mt_train.assemble.run_length import HasEpochs, Iterations, count_steps
from mt_train.assemble.save_interval import describe_auto
from mt_train.assemble.window_reference import refuse_stream
from mt_train.checkpoint.folder import check_usable
from mt_train.config.run import RunConfig
from mt_train.data.online import CollectsAnswers
from mt_train.data.packing import padded_size
from mt_train.engine.group_sizes import group_sizes
from mt_train.engine.plan import Plan, make_plan
from mt_train.engine.processes import Process
from mt_train.planning import memory
from mt_train.planning.contents import distinct_parameters
from mt_train.planning.counts import Counts
from mt_train.planning.media import fullest_media
from mt_train.planning.memory import LayerActivations
from mt_train.planning.meta_model import MetaModel
from mt_train.planning.rates import sample_rates


@dataclass(frozen=True, kw_only=True)
class PaperRun:
    """A run on paper that has no fault: what was read of it, for those who ask how it would be in other layouts."""

    parts: Parts
    plan: Plan
    data: RunData
    counts: Counts

    def about(self) -> dict[str, Any]:
        """Return what the run would do and hold, as plain data; ``--json`` prints it, bytes and counts."""
        return _about(self.parts, self.plan, self.data, self.counts)


def dry_run(parts: Parts, options: RunOptions, *, world: int, device: str | None = None) -> PaperRun:
    """Read and check a run on ``world`` ranks of a kind of device, which is that of this machine where none is given.

    Raises ``ConfigError`` with every fault of folder, layout, rows, tokenizer, model and weights; alone, a fault is raised as it is.
    """
    faults = _Faults()
    plan = data = None
    counts = Counts(parts, options.checkpoint)
    with faults.collect():
        if options.output is not None:
            replaces = options.overwrite or options.anew
            resume, own = options.checkpoint is not None, files_of_components(parts)
            check_usable(options.output, overwrite=replaces, resume=resume, own=own)
    with faults.collect():
        plan = make_plan(parts.config, world=world, device=device or _device(), offers=parts.offers.values())
    with faults.collect():
        data = build_data(parts)
        refuse_stream(parts, data)
        refuse_for_rollouts(parts, data)
        if options.checkpoint is None:
            refuse_noise(parts, data.objective)
    with faults.collect():
        build_evaluations(parts)
    with faults.collect():
        counts.meta(plan.pipeline if plan is not None else 1)
    faults.raise_all()
    assert plan is not None, "what is missing has left a fault"
    assert data is not None, "what is missing has left a fault"
    return PaperRun(parts=parts, plan=plan, data=data, counts=counts)


class _Faults:
    """Errors that are collected, so that all of them are said at once."""

    def __init__(self) -> None:
        self._errors: list[MtError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        try:
            yield
        except MtError as error:
            self._errors.append(error)

    def raise_all(self) -> None:
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            configs = [error for error in self._errors if isinstance(error, ConfigError)]
            faults = [fault for error in configs for fault in error.faults]
            others = [Fault(key="", problem=str(error)) for error in self._errors if error not in configs]
            raise ConfigError([*faults, *others], nearest="".join(error.nearest for error in configs))


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _about(parts: Parts, plan: Plan, data: RunData, counts: Counts) -> dict[str, Any]:
    config, meta = parts.config, counts.meta(plan.pipeline)
    length: HasEpochs = (
        Iterations(data.objective, len(data.train))
        if isinstance(data.objective, CollectsAnswers)
        else make_loader(config, data, plan, Process(0, plan.world, 0, torch.device("cpu")))
    )
    steps = count_steps(config.train, length)
    schedule = parts.schedule(steps)  # which may refuse so few
    rate = float(getattr(config.optimizer.options, "lr", 0.0))
    row_tokens = count_row_tokens(config, data)
    parameters = list(meta.model.parameters())
    return {
        "schema": 1,
        "saves": describe_auto(plan.world) if config.checkpoint.every_steps == "auto" else None,
        "model": model_title(parts),
        "parameters": {
            "total": sum(parameter.numel() for parameter in parameters),
            "trained": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        },
        "media": media_parts(meta.model),
        "adapter": adapter_reach(config.adapter.name, meta.model),
        "groups": [asdict(group) for group in group_sizes(meta.groups, lr=rate)],
        "trained": describe_trained(meta.model, config.train),
        "rates": sample_rates(schedule, rate, steps),
        "data": {
            "train": data.train.report.as_dict(),
            "held_out": data.held_out.report.as_dict() if len(data.held_out) else None,
        },
        "warnings": [*warnings(config, data, plan), *_quantizer_warnings(config, meta)],
        "training": data.train.report.describe(),
        "sources": data.train.report.describe_sources(),
        "held_out": describe_held_out(config, data),
        "example": example(data),
        "ranks": plan.world,
        "layout": plan.describe(),
        "plan": asdict(plan),
        "batch": {
            "data_ranks": plan.data_ranks,
            "micro_batches": plan.micro_batches,
            "rows": plan.global_batch_size,
            "row_tokens": row_tokens,
            "tokens": plan.global_batch_size * row_tokens,
        },
        "experts": _experts(plan, meta, row_tokens),
        "steps": steps,
        "epochs": None if data.stream else config.train.epochs or steps / length.steps_in(1.0),
        "stages": stages_on_paper(config, plan, counts, data, row_tokens),
    }


def _quantizer_warnings(config: RunConfig, meta: MetaModel) -> list[str]:
    if not meta.quantized:
        return []
    return dense_warnings(config.quantizer.name, *count_stored(meta.model, meta.quantized))


def _experts(plan: Plan, meta: MetaModel, row_tokens: int) -> dict[str, int] | None:
    """Return how many experts of a layer a rank has, and of how many rows they hear: even, and where all tokens choose them."""
    routers = [module for module in meta.model.modules() if isinstance(module, Router)]
    if plan.expert == 1 or not routers:
        return None
    most = max(routers, key=lambda router: router.options.top_k)
    n_experts, width = most.weight.shape
    rows = plan.micro_batch_size * -(-row_tokens // plan.sequence) * most.options.top_k
    return {
        "all": n_experts,
        "here": n_experts // plan.expert,
        "rows": rows,
        "most_rows": rows * plan.expert,
        "most_bytes": rows * plan.expert * width * memory.BYTES[plan.dtype],
    }


def count_row_tokens(config: RunConfig, data: RunData) -> int:
    """Return the tokens of the longest row, padding included; where rows are prompts, with the longest answers to them."""
    if config.data.batching == "packing":
        return config.train.sequence_len
    longest = longest_answered(data) or int(data.train.lengths.max())
    return padded_size(longest, config.data.pad_multiple, config.train.sequence_len)


def stages_on_paper(
    config: RunConfig, plan: Plan, counts: Counts, data: RunData, row_tokens: int
) -> list[dict[str, Any]]:
    """Return the stages of a layout: their layers, their ranks, and the memory of each of these in bytes."""
    tokens, meta = -(-row_tokens // plan.sequence), counts.meta(plan.pipeline)
    counted = counts.layers(plan, tokens)
    media = _media_activations(config, plan, counts, data, row_tokens)
    ranks = plan.sharing_ranks
    return [
        {
            "ranks": [number * ranks, (number + 1) * ranks - 1],
            "first_layer": start,
            "layers": _name_layers(start, end, meta.bounds[-1], list(meta.model.media or ())),
            "parameters": sum(parameter.numel() for parameter in distinct_parameters(layers)),
            "memory": {
                "weights": asdict(memory.weights(plan, content)),
                "gradients": asdict(memory.gradients(plan, content)),
                "optimizer": asdict(memory.optimizer_state(plan, content)),
                "buffers": asdict(memory.buffers(plan, content)),
                "activations": _activations(config, plan, number, counted, (start, end), tokens, media),
            },
        }
        for number, ((start, end), layers, content) in enumerate(
            zip(pairwise(meta.bounds), meta.stages(), counts.contents(plan), strict=True)
        )
    ]


def _activations(
    config: RunConfig,
    plan: Plan,
    stage: int,
    counted: Sequence[LayerActivations] | None,
    bounds: tuple[int, int],
    tokens: int,
    media: int | None,
) -> dict[str, int] | None:
    if counted is None or media is None:
        return None
    rows, width = plan.micro_batch_size, counted[-1].entering
    head = 0
    if bounds[1] > len(counted):
        width = counted[-1].entering // (memory.BYTES[plan.dtype] * rows * tokens)
        vocabulary = config.model.options.vocab_size
        chunk = chunk_tokens(torch.device(plan.device))
        head = memory.head_activations(plan, tokens=rows * tokens, width=width, vocabulary=vocabulary, chunk=chunk)
    form = config.train.recomputed
    beside = media if bounds[0] == 0 else 0
    return asdict(memory.activations(plan, stage, counted[slice(*bounds)], head, recompute=form, media=beside))


def _media_activations(config: RunConfig, plan: Plan, counts: Counts, data: RunData, row_tokens: int) -> int | None:
    """Return what encoders keep of a micro-batch of the rows with most media; ranks that share rows encode all of them."""
    if data.train.reader is None:
        return 0
    rows, packing = plan.micro_batch_size, config.data.batching == "packing"
    most = config.data.packing_features
    features = fullest_media(data.train, rows=rows, row_tokens=row_tokens, packing=packing, most_features=most)
    return counts.media(plan, data.train.reader.processors, features)


def _name_layers(start: int, end: int, layers: int, encoders: Sequence[str]) -> str:
    """``clip, embedding, blocks 0–3, norm, head``: the layers from ``start`` up to ``end``, the first behind the encoders."""
    first, last = max(start, 1) - 1, min(end, layers - 2) - 2
    blocks = [] if last < first else [f"block {first}" if first == last else f"blocks {first}–{last}"]
    ends = [name for number, name in ((layers - 2, "norm"), (layers - 1, "head")) if start <= number < end]
    return ", ".join([*([*encoders, "embedding"] if start == 0 else []), *blocks, *ends])
