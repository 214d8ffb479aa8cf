"""The trainable model of a run: built, filled, adapted, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from mt_core.adapters.base import Adapter, Probe
from mt_core.errors import ComponentError, UsageError
from mt_core.groups import is_of_media, layers_from_head, matching_pattern, require_matches
from mt_core.model_protocols import Objective
from mt_core.nn import SdpaAttention, TrainModel
from mt_core.nn.objective import split_objective_name
from mt_train.assemble.base_files import first_adapter
from mt_train.assemble.features import refuse_trained
from mt_train.assemble.injection import inject, start
from mt_train.assemble.parts import Parts
from mt_train.assemble.weights import Say, weights_of
from mt_train.config.sections import TrainConfig
from mt_train.engine.build import ALL_FP32, Dtypes, build_model, build_quantized, fill_model, weight_names
from mt_train.engine.compilation import compile_blocks
from mt_train.engine.engine import Engine
from mt_train.engine.experts import ExpertRanks
from mt_train.engine.fp8 import describe_fp8, multiply_in_fp8
from mt_train.engine.fused import FusedEngine
from mt_train.engine.liger import describe_liger, use_liger
from mt_train.engine.memory_check import refuse_beyond_memory
from mt_train.engine.meta import on_meta
from mt_train.engine.pipeline import PipelineEngine
from mt_train.engine.plan import Plan
from mt_train.engine.precision import DTYPES
from mt_train.engine.processes import Process
from mt_train.engine.random_state import preserve_random_state
from mt_train.engine.recomputation import block_runner, run_with_kept_attention
from mt_train.engine.sequence import UlyssesAttention, sequence_group
from mt_train.engine.settings import deepspeed_config
from mt_train.engine.stages import Stage, add_shared_parameters, build_stage
from mt_train.engine.step import TrainStep
from mt_train.engine.tiling import describe_whole, tile_mlps


def build_engine(
    parts: Parts,
    objective: Objective,
    *,
    plan: Plan,
    process: Process,
    deepspeed: ModuleType,
    say: Say,
    checkpoint: Path | None = None,
    probe: Callable[[TrainModel], Probe] | None = None,
) -> Engine:
    """Everything from the empty model to DeepSpeed. A checkpoint's weights replace those that the config names."""
    config = parts.config
    settings = deepspeed_config(plan, config.parallel.deepspeed)
    experts = ExpertRanks(plan.expert, process) if plan.expert > 1 else None
    dtypes = frozen_dtypes(parts, plan, checkpoint)
    given: dict[str, Any] = {"settings": settings, "deepspeed": deepspeed, "experts": experts, "dtypes": dtypes}
    # layers draw values of their own, or none, by how they are built: dropout draws the same
    with preserve_random_state():
        model, stage = _build_base(parts, plan=plan, process=process, **given)
    if experts is not None:
        experts.connect(model)
    names = weight_names(model)
    source = weights_of(parts, names, say, checkpoint, adapted=True)
    fill_model(model, source, seed=config.train.seed, process=process)
    if config.train.matmul == "fp8":
        say(describe_fp8(multiply_in_fp8(model, least=config.train.fp8_min_size, device=process.device)))
    if config.train.kernels == "liger":
        say(describe_liger(use_liger(model, process.device)))
    model.attention = attention = SdpaAttention(
        "flash" if config.train.attention == "flash3" else config.train.attention
    )
    if plan.sequence > 1:
        model.attention = UlyssesAttention(attention, sequence_group(process, plan.sequence), plan.sequence)
    use_less_memory(model, config.train, say)
    adapter = inject(parts, model, checkpoint=checkpoint, probe=probe and partial(probe, model))
    if dtypes:
        widen_adapter(model, names)
    if stage is not None:
        stage = add_shared_parameters(stage, process.device)
    start(parts, model, adapter, names, process=process, checkpoint=checkpoint)
    if config.train.compile:
        compile_model(model, packs=config.data.batching == "packing")
    groups = parameter_groups(parts, model, adapter)
    refuse_trained(parts, model)
    if stage is not None:
        groups = stage.own_groups(groups)
    optimizer = parts.optimizer(groups)
    own_head = parts.objective_component.head == "own"
    shared: dict[str, Any] = {"plan": plan, "process": process, "settings": settings, "adapter": adapter}
    if stage is not None:
        return PipelineEngine(deepspeed, stage, objective, optimizer, own_head=own_head, **shared)
    kind = FusedEngine if parts.optimizer_component.form == "fused" else Engine
    return kind(deepspeed, TrainStep(model, objective, own_head=own_head), optimizer, experts=experts, **shared)


def _build_base(
    parts: Parts,
    *,
    plan: Plan,
    process: Process,
    settings: dict[str, Any],
    deepspeed: ModuleType,
    experts: ExpertRanks | None,
    dtypes: Dtypes,
) -> tuple[TrainModel, Stage | None]:
    """Build the model without values and without its adapter; in a pipeline with the layers of this rank's stage."""
    quantizer, offered = parts.quantizer(), parts.pipeline_layers() if plan.pipeline > 1 else None
    if quantizer is None:
        make = parts.model if experts is None or plan.zero_stage == 3 else experts.divide(parts.model)
        refuse_beyond_memory(make, plan=plan, process=process, offered=offered)
    if plan.pipeline > 1:
        stage = build_stage(parts.model, offered, plan=plan, process=process, dtypes=dtypes)
        return stage.model, stage
    if quantizer is not None:
        return build_quantized(parts.model, quantizer, process.device, dtypes), None
    given: dict[str, Any] = {"settings": settings, "deepspeed": deepspeed, "experts": experts, "dtypes": dtypes}
    return build_model(parts.model, plan=plan, process=process, **given), None


def frozen_dtypes(parts: Parts, plan: Plan, checkpoint: Path | None) -> Dtypes:
    """Return the run's 16 bits for each weight that it does not train, so that a frozen base is never there in fp32.

    Empty in fp32; where ZeRO 3 builds all in 16 bits; for an adapter that looks at weights and data before it is there, in fp32; and for a
    model that looks at values while it is built.
    """
    if plan.dtype == "fp32" or (plan.zero_stage == 3 and parts.quantizer() is None):
        return ALL_FP32
    looks = type(parts.adapter()).prepare is not Adapter.prepare
    if looks and checkpoint is None and first_adapter(parts) is None:
        return ALL_FP32
    try:
        with on_meta():
            model = parts.model()
    except (RuntimeError, NotImplementedError):
        return ALL_FP32
    floating = [name for name, each in model.named_parameters() if each.is_floating_point()]
    with on_meta():
        adapter = inject(parts, model, checkpoint=checkpoint)
    trained = trained_names(parts.config.train, model, adapter, head=parts.objective_component.head)
    in_fp32 = trained | set(model.kept_names())
    return {name: DTYPES[plan.dtype] for name in floating if name not in in_fp32}


def widen_adapter(model: TrainModel, base: Collection[str]) -> None:
    """Give what an adapter has brought, in the dtype of what it stands beside, the fp32 in which first values are drawn."""
    known = set(base)
    for name, parameter in model.named_parameters():
        if name not in known and parameter.is_floating_point():
            parameter.data = parameter.data.float()


def compile_model(model: TrainModel, *, packs: bool) -> None:
    """Compile the blocks of this rank, with attention in their graphs where a graph can hold it."""
    from mt_train.engine.graph_attention import GraphAttention  # with torch's compiler, a third of a start

    kept = model.recompute is run_with_kept_attention  # its attention runs outside
    if isinstance(model.attention, SdpaAttention) and model.attention.kernel in ("auto", "flash") and not kept:
        model.attention = GraphAttention(model.attention, packs=packs)
    compile_blocks(layer.module for layer in model.layers()[1:-2])


def use_less_memory(model: TrainModel, train: TrainConfig, say: Say) -> None:
    """Let blocks run as the run says: what they keep for their backward, and how many tokens their MLPs compute at a time."""
    model.checkpoint_blocks = train.recomputed is not None
    model.recompute = block_runner(train.recomputed or "full")
    if train.mlp_tile_tokens is not None and (whole := tile_mlps(model, train.mlp_tile_tokens)):
        say(describe_whole(whole, len(model.layers()) - 3))


def parameter_groups(parts: Parts, model: TrainModel, adapter: Adapter) -> list[dict[str, Any]]:
    """The optimizer's policy for all trained parameters, and what the adapter claims of it; each is in exactly one group."""
    trained = trained_names(parts.config.train, model, adapter, head=parts.objective_component.head)
    from_head = layers_from_head([name for name, _ in model.named_parameters()])  # frozen blocks among them
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
        parameter.from_head = from_head[name]  # type: ignore[attr-defined]  # for layer_decay
    options = parts.config.optimizer.options
    rate = float(getattr(options, "lr", 0.0))
    claims = adapter.parameter_groups(model, rate)
    named = [(name, parameter) for name, parameter in model.named_parameters() if name in trained]
    groups = _apply_claims(parts.optimizer_component.split(named, options), claims, rate)
    placed = [id(parameter) for group in groups for parameter in group["params"]]
    wanted, claimed = {id(p) for _, p in named}, {id(p) for claim in claims for p in claim["params"]}
    if len(placed) != len(set(placed)) or set(placed) != wanted or not claimed <= wanted:
        raise ComponentError(
            f"the parameter groups of {parts.config.adapter.name} and {parts.config.optimizer.name} hold"
            f" {len(placed)} parameters, {len(set(placed) | claimed)} of them different, and {len(wanted)} are trained; each"
            " trained parameter belongs in exactly one group"
        )
    return groups


def _apply_claims(
    groups: Sequence[dict[str, Any]], claims: Sequence[Mapping[str, Any]], rate: float
) -> list[dict[str, Any]]:
    """Each claim with what the policy says of its parameters below it: its rate is multiplied where the policy's is another than
    ``rate``. Then what is left of the groups."""
    owned, taken = [], {id(parameter) for claim in claims for parameter in claim["params"]}
    for claim in claims:
        own = {id(parameter) for parameter in claim["params"]}
        for group in groups:
            if params := [each for each in group["params"] if id(each) in own]:
                scaled = {"lr": claim["lr"] * group["lr"] / rate} if rate and "lr" in claim and "lr" in group else {}
                named = {"name": f"{claim['name']} {group['name']}", "params": params}
                owned.append({**group, **claim, **scaled, **named})
    rest = [{**group, "params": [each for each in group["params"] if id(each) not in taken]} for group in groups]
    return [*owned, *(group for group in rest if group["params"])]


def trained_names(
    train: TrainConfig, model: TrainModel, adapter: Adapter, *, head: Literal["language", "own"] = "language"
) -> set[str]:
    """The adapter's parameters, those of the objective and of projectors of media, and what ``train.enable`` and ``train.disable`` say of
    others; what the model has ``kept`` is not among them.

    An objective with its ``own`` head does not train the language head. Raises ``UsageError`` for a pattern that matches nothing, or
    what is kept and nothing else, and where nothing is left.
    """
    names = [name for name, _ in model.named_parameters()]
    require_matches("train.enable", train.enable, names)
    for pattern in train.enable:
        model.refuse_kept("train.enable", pattern, [name for name in names if matching_pattern(name, [pattern])])
    require_matches("train.disable", train.disable, names)
    offered = set(adapter.trainable_parameters(model))
    offered |= _of_projectors(names, offered) | {name for name in names if matching_pattern(name, train.enable)}
    of_objective = {name for name in names if split_objective_name(name)}
    offered |= of_objective
    if head == "own":
        unused = {id(each) for each in model.head.parameters()}
        unused -= {id(each) for layer in model.layers()[:-1] for each in layer.module.parameters()}  # a tied embedding
        offered -= {name for name, each in model.named_parameters() if id(each) in unused} - of_objective
    offered -= set(model.kept_names())
    trained = {name for name in offered if not matching_pattern(name, train.disable)}
    if not trained:
        if not offered:
            raise UsageError(
                f"all that the adapter would train is kept as it is by {type(model).__name__}; take another one"
            )
        raise UsageError(f"train.disable={list(train.disable)} leaves no parameter to train; disable fewer")
    return trained


def _of_projectors(names: Sequence[str], offered: Set[str]) -> set[str]:
    """Return the parameters of projectors of media, which most weights lack: they are trained under every adapter, but for projectors that
    it stands in itself."""
    places = {name: ".".join(name.split(".", 3)[:3]) for name in names if is_of_media(name)}
    adapted = {place for name, place in places.items() if name in offered}
    return {name for name, place in places.items() if place.endswith(".projector") and place not in adapted}
