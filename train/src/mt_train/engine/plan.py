"""Plan of a layout from a config and a number of ranks, or every reason why there is none. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from mt_core.components import OptimizerComponent
from mt_core.config.base import ZERO, Layout
from mt_core.errors import ConfigError, Fault
from mt_core.evaluation import EvaluationComponent
from mt_core.plugins.host import Offer
from mt_train.config.deepspeed import DeepSpeedOptions
from mt_train.config.run import RunConfig
from mt_train.config.sections import ParallelConfig
from mt_train.engine import layout
from mt_train.engine.config_limits import limit_faults
from mt_train.engine.layout_suggestion import suggest_layout


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Layout of a run, settled before anything is built."""

    world: int
    device: str
    dtype: str
    zero_stage: int
    offload: str
    micro_batch_size: int
    global_batch_size: int
    clip_norm: float | None
    pipeline: int = 1
    sequence: int = 1
    expert: int = 1
    own_masters: bool = False
    notices: tuple[str, ...] = ()

    @property
    def sharing_ranks(self) -> int:
        """W: ranks that have the same parameters, all of them or those of a pipeline stage."""
        return self.world // self.pipeline

    @property
    def data_ranks(self) -> int:
        """Ranks, or groups of ranks, that have rows of their own."""
        return self.sharing_ranks // self.sequence

    def data_rank(self, rank: int) -> int:
        """Return which of them a rank is in: those that share rows are neighbours, and each stage has its ranks in a block."""
        return rank % self.sharing_ranks // self.sequence

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a full optimizer step, on each rank."""
        return self.global_batch_size // (self.micro_batch_size * self.data_ranks)

    def part(self, rank: int) -> tuple[int, int]:
        """(number, of how many): which share of each row's tokens a rank has."""
        return rank % self.sequence, self.sequence

    def embeds(self, rank: int) -> bool:
        """Return whether a rank has the first layer, which takes ids and what encoders read."""
        return rank < self.sharing_ranks

    @property
    def trains_weights(self) -> bool:
        """Return whether the optimizer changes the model's own parameters, and nothing stands between: ZeRO 0 without masters."""
        return self.zero_stage == 0 and not self.own_masters

    @property
    def scales_loss(self) -> bool:
        """Return whether some steps are passed over while a scale is found that keeps gradients from overflowing."""
        return self.dtype == "fp16"

    @property
    def forward_alone(self) -> bool:
        """Return whether a rank can run the model without the others: it has all weights, and whole rows."""
        return self.zero_stage < 3 and self.sequence == self.pipeline == self.expert == 1

    @property
    def writes_texts(self) -> bool:
        """Return whether ranks can generate: each has whole rows and all layers, though at ZeRO 3, or with a part of the experts, only
        with the others."""
        return self.sequence == 1 and self.pipeline == 1

    @property
    def overlaps(self) -> bool:
        """Return whether gradients travel while the backward goes on. In a pipeline they are complete after the last one only,
        and shared weights' even later."""
        return self.device == "cuda" and self.world > 1 and self.pipeline == 1

    @property
    def layouts(self) -> set[Layout]:
        """The layouts that every chosen component has to support."""
        stages: dict[int, Layout] = {0: "zero0", 1: "zero1", 2: "zero2", 3: "zero3"}
        offload: set[Layout] = {"offload"} if self.offload != "none" else set()
        sequence: set[Layout] = {"sequence"} if self.sequence > 1 else set()
        pipeline: set[Layout] = {"pipeline"} if self.pipeline > 1 else set()
        expert: set[Layout] = {"expert"} if self.expert > 1 else set()
        return {stages[self.zero_stage]} | offload | sequence | pipeline | expert

    def describe(self) -> str:
        """Describe the plan for people: ``2 ranks × 8 rows × 4 micro-batches = 64 rows a step, ZeRO 1, bf16``."""
        ranks = "1 rank" if self.data_ranks == 1 else f"{self.data_ranks} ranks"
        if self.sequence > 1:
            ranks = f"{self.data_ranks} × {self.sequence} ranks that share a row"
        if self.pipeline > 1:
            ranks = f"{self.pipeline} stages × {ranks}"
        offload = "" if self.offload == "none" else f", {self.offload} offloaded"
        masters = ", own masters" if self.own_masters else ""
        experts = "" if self.expert == 1 else f", experts divided among {self.expert} ranks"
        return (
            f"{ranks} × {self.micro_batch_size} rows × {self.micro_batches} micro-batches = {self.global_batch_size} rows"
            f" a step, ZeRO {self.zero_stage}, {self.dtype}{masters}{offload}{experts}"
        )


DEVICES = ("cpu", "cuda")
"""Devices that a run may be on; which one it is, only torch knows."""


def make_plan(config: RunConfig, *, world: int, device: str, offers: Iterable[Offer]) -> Plan:
    """Settle every ``auto``. Raises ``ConfigError`` with all faults of the layout at once, and the nearest that has none."""
    offers = tuple(offers)
    plan, faults = _settle_plan(config, world, device, offers)
    if faults:
        raise _plan_error(faults, config, world, (device,), offers)
    return plan


def check_layout(config: RunConfig, *, world: int, offers: Iterable[Offer]) -> None:
    """Refuse what fails on every device, before torch is loaded and any process starts. Raises as ``make_plan``."""
    offers = tuple(offers)
    if faults := layout_faults(config, world, DEVICES, offers):
        raise _plan_error(faults, config, world, DEVICES, offers)


def step_rows(config: RunConfig, world: int, offers: Sequence[Offer]) -> int:
    """Return the rows of an optimizer step on so many ranks."""
    return _settle_plan(config, world, DEVICES[0], offers)[0].global_batch_size


def _plan_error(
    faults: Sequence[Fault], config: RunConfig, world: int, devices: Sequence[str], offers: Sequence[Offer]
) -> ConfigError:
    def works(changed: RunConfig, ranks: int) -> bool:
        return not layout_faults(changed, ranks, devices, offers)

    return ConfigError(faults, nearest=str(suggest_layout(config, world, works)))


def layout_faults(config: RunConfig, world: int, devices: Sequence[str], offers: Sequence[Offer]) -> list[Fault]:
    """The rules: what is wrong with a layout on each of the devices alike."""
    found = [_settle_plan(config, world, device, offers)[1] for device in devices]
    return [fault for fault in found[0] if all(fault in others for others in found[1:])]


def _settle_plan(config: RunConfig, world: int, device: str, offers: Sequence[Offer]) -> tuple[Plan, list[Fault]]:
    """The plan, and what is wrong with it; a part that is wrong counts as 1 for what comes after it."""
    train, parallel = config.train, config.parallel
    dtype = train.dtype if train.dtype != "auto" else ("bf16" if device == "cuda" else "fp32")
    faults = [*layout.wrong_precision(config, dtype, device), *layout.wrong_offload(config)]
    stage, notices = _stage(config, world, dtype, offers)
    if train.micro_batch_size == "auto":
        notices += ("how many rows a rank computes at a time is found before the first step; on paper it is one",)
    pipeline, sequence = parallel.pipeline, parallel.sequence
    if wrong := layout.wrong_pipeline(config, world, dtype):
        faults.extend(wrong)
        stage, pipeline = 1, pipeline if world % pipeline == 0 else 1
    if fault := layout.wrong_sequence(config, world // pipeline):
        faults.append(fault)
        sequence = 1
    notices += layout.unused_reduction(config, dtype, stage)
    expert = parallel.expert
    if wrong := layout.wrong_expert(config, world // pipeline):
        faults.extend(wrong)
        expert = 1
    data_ranks = world // (pipeline * sequence)
    plan = Plan(
        world=world,
        device=device,
        dtype=dtype,
        zero_stage=stage,
        offload=parallel.offload,
        micro_batch_size=train.rows_at_a_time,
        global_batch_size=train.global_batch_size or train.rows_at_a_time * data_ranks,
        clip_norm=train.clip_norm,
        pipeline=pipeline,
        sequence=sequence,
        expert=expert,
        own_masters=dtype == "bf16" and stage <= 1 and _keeps_masters(parallel),
        notices=notices,
    )
    faults.extend(layout.wrong_batch(plan.global_batch_size, plan.data_ranks, plan.micro_batch_size))
    layouts = plan.layouts
    faults.extend(fault for offer in offers for fault in _unsupported_faults(offer, plan, layouts))
    faults.extend(fault for offer in offers for fault in limit_faults(offer, config, plan.world, layouts))
    return plan, list(dict.fromkeys(faults))


def _keeps_masters(parallel: ParallelConfig) -> bool:
    """Return whether masters of a bf16 run at ZeRO 1 are our own: where nothing asks for DeepSpeed's, its options included."""
    divides = parallel.pipeline > 1 or parallel.expert > 1 or parallel.offload != "none"
    return parallel.masters == "auto" and not divides and parallel.deepspeed == DeepSpeedOptions()


def _stage(config: RunConfig, world: int, dtype: str, offers: Sequence[Offer]) -> tuple[int, tuple[str, ...]]:
    wanted, offload = config.parallel.zero_stage, config.parallel.offload
    optimizers = [offer.component for offer in offers if isinstance(offer.component, OptimizerComponent)]
    whole = any(each.layouts.isdisjoint(ZERO - {"zero0"}) for each in optimizers)
    masters = dtype == "bf16" and _keeps_masters(config.parallel) and all(each.form != "fused" for each in optimizers)
    if config.parallel.pipeline > 1 and wanted == "auto":
        return 1, ()
    if offload == "parameters":
        return 3, ()
    if wanted == "auto":
        wanted = 0 if (whole or (world == 1 and dtype == "fp32")) and offload == "none" else 1
    if wanted == 0 and dtype != "fp32" and not (whole and masters):
        return 1, (
            f"ZeRO 0 in {dtype} runs as ZeRO 1: DeepSpeed's own {dtype} optimizer takes a step before the first one",
        )
    return wanted, ()


_CONCERNED: dict[str, frozenset[str]] = {
    "pipeline": frozenset({"train_model", "objective", "quantizer", "adapter", "optimizer", "callback"}),
    "sequence": frozenset({"train_model", "objective", "quantizer", "adapter", "callback"}),
    "offload": frozenset({"optimizer", "callback"}),
    "expert": frozenset({"train_model", "quantizer", "adapter"}),
}
"""Layouts that only some kinds of component take notice of; every other layout concerns all."""


def _unsupported_faults(offer: Offer, plan: Plan, layouts: Set[Layout]) -> Iterator[Fault]:
    component = offer.component
    needed = {layout for layout in layouts if offer.kind in _CONCERNED.get(layout, {offer.kind})}
    form = component.form if isinstance(component, OptimizerComponent) else None
    if form == "whole_parameter" and plan.zero_stage > 0:
        problem = f"{component.name} needs whole parameters, and ZeRO {plan.zero_stage} shows it flat pieces."
        yield Fault(key="optimizer", problem=problem, fix=_fix_of_pieces(plan))
        needed -= ZERO  # which it lacks for this reason
    if form == "fused" and plan.dtype != "fp32":
        problem = f"{component.name} changes each weight as its gradient arrives, and {plan.dtype} keeps copies of them in fp32."
        yield Fault(key="train.dtype", problem=problem, fix="Set --train.dtype fp32.")
        needed -= {"zero1"}  # where the copies are
    yield from _divided_faults(offer, plan, form)
    if missing := needed - component.layouts - {"expert"}:
        problem = f"{component.name} does not support {', '.join(sorted(missing))}."
        yield Fault(key="parallel", problem=problem, fix=f"It supports {', '.join(sorted(component.layouts))}.")
    if plan.device not in component.devices:
        problem = f"{component.name} does not run on {plan.device}; it runs on {', '.join(sorted(component.devices))}."
        yield Fault(key="", problem=problem)
    if isinstance(component, EvaluationComponent) and "texts" in component.needs and not plan.writes_texts:
        layout = "a pipeline" if plan.pipeline > 1 else "ranks that share rows"
        problem = f"{component.name} needs texts, which {layout} cannot generate."
        yield Fault(key="evaluations", problem=problem, fix="Leave it out, and evaluate checkpoints with mt-eval.")
    if form == "fused" and plan.micro_batches > 1:
        problem = f"{component.name} keeps no gradients, which {plan.micro_batches} micro-batches a step would be added up in."
        rows = plan.global_batch_size // plan.data_ranks
        yield Fault(key="optimizer", problem=problem, fix=f"Set --train.micro-batch-size {rows}, or fewer rows a step.")
    if form == "gradient_transform" and plan.scales_loss:
        problem = f"{component.name} makes directions of gradients, which fp16 would have to scale."
        yield Fault(key="train.dtype", problem=problem, fix="Set --train.dtype bf16.")


def _fix_of_pieces(plan: Plan) -> str:
    """Return how parameters of such a layout become whole ones: in half precision beside masters of our own alone."""
    if plan.dtype == "fp16":
        return "Set --train.dtype bf16."
    if plan.dtype == "bf16" and plan.zero_stage == 1 and not plan.own_masters:
        return (
            "In bf16 leave out --parallel.masters deepspeed, options of --parallel.deepspeed, offload, pipeline and expert ranks; or set"
            " --train.dtype fp32 --parallel.zero-stage 0."
        )
    return "Set --parallel.zero-stage 0."


def _divided_faults(offer: Offer, plan: Plan, form: str | None) -> Iterator[Fault]:
    """Refuse what cannot see, or does not know, the rows of a parameter that expert ranks divide."""
    name, without = offer.component.name, "Set --parallel.expert 1"
    if plan.expert == 1:
        return
    if form in ("whole_parameter", "fused"):
        problem = f"{name} needs whole parameters, and expert ranks have some rows of those of experts."
        yield Fault(key="optimizer", problem=problem, fix=f"{without}, or take one that works on numbers, e.g. adamw.")
    if form == "gradient_transform" and plan.zero_stage == 0:
        problem = f"{name} needs whole gradients, which are put together from those of expert ranks above ZeRO 0 alone."
        yield Fault(key="parallel.zero-stage", problem=problem, fix="Set 1, 2 or 3, or --parallel.expert 1.")
    if offer.kind not in _CONCERNED["expert"] or "expert" in offer.component.layouts:
        return
    why, instead = {
        "train_model": ("has no experts that ranks could divide", "train a mixture that says so (mt-plugins info)"),
        "adapter": (
            "stands on experts that are modules of their own, all of them on each rank",
            "train with --adapter full",
        ),
        "quantizer": ("keeps all experts on each rank in its own form", "train with --quantizer none"),
    }[offer.kind]
    yield Fault(key="parallel.expert", problem=f"{name} {why}.", fix=f"{without}, or {instead}.")
