"""A run on paper: everything is read and checked, nothing is started, and no weight takes memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mt_core.errors import ConfigError, Fault, MtError
from mt_core.nn import Layer, Router, TrainModel
from mt_core.nn.loss import CHUNK_TOKENS
from mt_train.assemble.data import RunData, build_data, make_loader
from mt_train.assemble.injection import inject
from mt_train.assemble.model import parameter_groups
from mt_train.assemble.own_files import files_of_components
from mt_train.assemble.parts import Parts
from mt_train.assemble.reach import adapter_reach, count_stored, dense_warnings
from mt_train.assemble.report import example, model_title, warnings
from mt_train.assemble.run import RunOptions
from mt_train.assemble.weights import adapter_weights, weights_of
from mt_train.checkpoint.folder import check_usable
from mt_train.config.run import RunConfig
from mt_train.data.packing import padded_size
from mt_train.engine.build import DTYPES, build_quantized, stored_layers, without_memory
from mt_train.engine.experts import divided_parameters
from mt_train.engine.group_sizes import group_sizes
from mt_train.engine.meta import on_meta
from mt_train.engine.plan import Plan, make_plan
from mt_train.engine.processes import Process
from mt_train.engine.stages import cut
from mt_train.planning import memory
from mt_train.planning.activations import layer_activations
from mt_train.planning.memory import Content, LayerActivations
from mt_train.planning.moments import state_bytes
from mt_train.planning.rates import sample_rates


def dry_run(parts: Parts, options: RunOptions, *, world: int) -> dict[str, Any]:
    """Return what a run on ``world`` ranks would do and hold, as plain data; ``--json`` prints it, bytes and counts.

    Raises ``ConfigError`` with every fault of folder, layout, rows, tokenizer, model and weights; alone, a fault is raised as it is.
    """
    faults = _Faults()
    plan = data = drawn = None
    with faults.collect():
        if options.output is not None:
            replaces = options.overwrite or options.anew
            resume, own = options.checkpoint is not None, files_of_components(parts)
            check_usable(options.output, overwrite=replaces, resume=resume, own=own)
    with faults.collect():
        plan = make_plan(parts.config, world=world, device=_device(), offers=parts.offers.values())
    with faults.collect():
        data = build_data(parts)
    with faults.collect():
        drawn = draw(parts, plan.pipeline if plan is not None else 1, options.checkpoint)
    faults.raise_all()
    assert plan is not None, "what is missing has left a fault"
    assert data is not None, "what is missing has left a fault"
    assert drawn is not None, "what is missing has left a fault"
    return _about(parts, plan, data, drawn)


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


# ------------------------------------------------------------------------------------------------------------ the model


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A model without memory, cut into stages, and what of it is trained. ``quantized``: bytes of weights by name, once they are."""

    model: TrainModel
    bounds: tuple[int, ...]
    groups: list[dict[str, Any]]
    quantized: Mapping[str, int]

    def stages(self) -> list[list[Layer]]:
        """The layers of each stage."""
        layers = list(self.model.layers())
        return [layers[start:end] for start, end in pairwise(self.bounds)]


def draw(parts: Parts, stages: int, checkpoint: Path | None = None) -> Drawing:
    """The model with its adapter. Raises ``MtError`` for weights with other names and for a model that cannot be cut."""
    if stages > 1:
        stage = cut(parts.model, parts.pipeline_layers(), stages)
        model, bounds = stage.model, stage.bounds
    else:
        with without_memory():
            model = parts.model()
        bounds = (0, len(model.layers()))
    names = [name for name, _ in model.named_parameters()]
    weights_of(parts, names, lambda text: None, checkpoint, adapted=True)
    with on_meta():
        adapter = inject(parts, model, checkpoint=checkpoint)
    own = [name for name, _ in model.named_parameters() if name not in set(names)]
    adapter_weights(parts, model, adapter, names, own, checkpoint)
    groups = parameter_groups(parts, model, adapter)
    return Drawing(model=model, bounds=bounds, groups=groups, quantized=_quantized_bytes(parts))


def _quantized_bytes(parts: Parts) -> dict[str, int]:
    """Found on a model of its own: the activations are those of the dense layers, which fake tensors can run."""
    quantizer = parts.quantizer()
    if quantizer is None:
        return {}
    layers = stored_layers(build_quantized(parts.model, quantizer, torch.device("meta")))
    return {f"{name}.weight": layer.stored_bytes for name, layer in layers}


def contents(parts: Parts, plan: Plan, drawn: Drawing) -> list[Content]:
    """Return what the ranks of each stage have."""
    kept = state_bytes(parts.optimizer, drawn.groups, flat=plan.zero_stage > 0)
    dense = {id(parameter) for name, parameter in drawn.model.named_parameters() if name not in drawn.quantized}
    quantized = sum(drawn.quantized.values())  # all on one stage: no quantizer goes with a pipeline
    if plan.expert > 1:
        return [_divide(plan.expert, drawn, kept, {id(each) for each in divided_parameters(drawn.model, plan.expert)})]
    return [_content(layers, drawn.groups, kept, dense, quantized) for layers in drawn.stages()]


def _content(
    layers: Sequence[Layer], groups: Sequence[dict[str, Any]], kept: Sequence[float], dense: Set[int], quantized: int
) -> Content:
    own = [parameter for parameter in _distinct_parameters(layers) if id(parameter) in dense]
    here = {id(parameter) for parameter in own}
    return Content(
        quantized=quantized,
        parameters=tuple(parameter.numel() for parameter in own),
        groups=tuple(tuple(p.numel() for p in group["params"] if id(p) in here) for group in groups),
        state_bytes=tuple(kept),
        largest=max(sum(p.numel() for p in layer.module.parameters() if id(p) in dense) for layer in layers),
    )


def _divide(ranks: int, drawn: Drawing, kept: Sequence[float], experts: Set[int]) -> Content:
    """Return what a rank has where so many divide the experts, which are groups of their own to ZeRO. There is one stage."""
    layers = drawn.stages()[0]
    own = _distinct_parameters(layers)

    def numbers(parameters: Iterable[nn.Parameter], *, divided: bool) -> tuple[int, ...]:
        chosen = (each for each in parameters if (id(each) in experts) == divided)
        return tuple(each.numel() // (ranks if divided else 1) for each in chosen)

    def both(parameters: Iterable[nn.Parameter]) -> int:
        every = list(parameters)
        return sum(numbers(every, divided=False)) + sum(numbers(every, divided=True))

    groups = [
        [
            (found, size)
            for group, size in zip(drawn.groups, kept, strict=True)
            if (found := numbers(group["params"], divided=divided))
        ]
        for divided in (False, True)
    ]
    return Content(
        parameters=numbers(own, divided=False),
        experts=numbers(own, divided=True),
        groups=tuple(found for half in groups for found, _ in half),
        expert_groups=len(groups[1]),
        state_bytes=tuple(size for half in groups for _, size in half),
        largest=max(both(layer.module.parameters()) for layer in layers),
    )


def _distinct_parameters(layers: Sequence[Layer]) -> list[nn.Parameter]:
    """Return the parameters of layers, a shared one once."""
    return list({id(parameter): parameter for layer in layers for parameter in layer.module.parameters()}.values())


# ------------------------------------------------------------------------------------------------------------- the plan


def _about(parts: Parts, plan: Plan, data: RunData, drawn: Drawing) -> dict[str, Any]:
    config = parts.config
    loader = make_loader(config, data, plan, Process(0, plan.world, 0, torch.device("cpu")))
    steps = config.train.steps or loader.steps_in(config.train.epochs or 1.0)
    schedule = parts.schedule(steps)  # which may refuse so few
    rate = float(getattr(config.optimizer.options, "lr", 0.0))
    row_tokens = _row_tokens(config, data)
    parameters = list(drawn.model.parameters())
    return {
        "schema": 1,
        "model": model_title(parts),
        "parameters": {
            "total": sum(parameter.numel() for parameter in parameters),
            "trained": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        },
        "adapter": adapter_reach(config.adapter.name, drawn.model),
        "groups": [asdict(group) for group in group_sizes(drawn.groups, lr=rate)],
        "rates": sample_rates(schedule, rate, steps),
        "data": {
            "train": data.train.report.as_dict(),
            "held_out": data.held_out.report.as_dict() if len(data.held_out) else None,
        },
        "warnings": [*warnings(config, data, plan), *_quantizer_warnings(config, drawn)],
        "training": data.train.report.describe(),
        "held_out": data.held_out.report.describe() if len(data.held_out) else "nothing",
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
        "experts": _experts(plan, drawn, row_tokens),
        "steps": steps,
        "epochs": None if data.stream else config.train.epochs or steps / loader.steps_in(1.0),
        "stages": _stages(parts, plan, drawn, row_tokens),
    }


def _quantizer_warnings(config: RunConfig, drawn: Drawing) -> list[str]:
    if not drawn.quantized:
        return []
    return dense_warnings(config.quantizer.name, *count_stored(drawn.model, drawn.quantized))


def _experts(plan: Plan, drawn: Drawing, row_tokens: int) -> dict[str, int] | None:
    """Return how many experts of a layer a rank has, and of how many rows they hear: even, and where all tokens choose them."""
    routers = [module for module in drawn.model.modules() if isinstance(module, Router)]
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


def _row_tokens(config: RunConfig, data: RunData) -> int:
    """Return the tokens of the longest row, padding included."""
    if config.data.batching == "packing":
        return config.train.sequence_len
    return padded_size(int(data.train.lengths.max()), config.data.pad_multiple, config.train.sequence_len)


def _stages(parts: Parts, plan: Plan, drawn: Drawing, row_tokens: int) -> list[dict[str, Any]]:
    tokens = -(-row_tokens // plan.sequence)
    counted = layer_activations(
        drawn.model.layers(), rows=plan.micro_batch_size, tokens=tokens, dtype=DTYPES[plan.dtype]
    )
    ranks = plan.sharing_ranks
    return [
        {
            "ranks": [number * ranks, (number + 1) * ranks - 1],
            "first_layer": start,
            "layers": _name_layers(start, end, drawn.bounds[-1]),
            "parameters": sum(parameter.numel() for parameter in _distinct_parameters(layers)),
            "memory": {
                "weights": asdict(memory.weights(plan, content)),
                "gradients": asdict(memory.gradients(plan, content)),
                "optimizer": asdict(memory.optimizer_state(plan, content)),
                "buffers": asdict(memory.buffers(plan, content)),
                "activations": _activations(parts.config, plan, number, counted, (start, end), tokens),
            },
        }
        for number, ((start, end), layers, content) in enumerate(
            zip(pairwise(drawn.bounds), drawn.stages(), contents(parts, plan, drawn), strict=True)
        )
    ]


def _activations(
    config: RunConfig,
    plan: Plan,
    stage: int,
    counted: Sequence[LayerActivations] | None,
    bounds: tuple[int, int],
    tokens: int,
) -> dict[str, int] | None:
    if counted is None:
        return None
    rows, width = plan.micro_batch_size, counted[-1].entering
    head = 0
    if bounds[1] > len(counted):
        width = counted[-1].entering // (memory.BYTES[plan.dtype] * rows * tokens)
        vocabulary = config.model.options.vocab_size
        head = memory.head_activations(
            plan, tokens=rows * tokens, width=width, vocabulary=vocabulary, chunk=CHUNK_TOKENS
        )
    recompute = config.train.activation_checkpointing
    return asdict(memory.activations(plan, stage, counted[slice(*bounds)], head, recompute=recompute))


def _name_layers(start: int, end: int, layers: int) -> str:
    """``embedding, blocks 0–3, norm, head``: the layers from ``start`` up to ``end``."""
    first, last = max(start, 1) - 1, min(end, layers - 2) - 2
    blocks = [] if last < first else [f"block {first}" if first == last else f"blocks {first}–{last}"]
    ends = [name for number, name in ((layers - 2, "norm"), (layers - 1, "head")) if start <= number < end]
    return ", ".join([*(["embedding"] if start == 0 else []), *blocks, *ends])
