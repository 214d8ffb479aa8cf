"""The fastest layouts of a run on a cluster, on paper.

What the check of layouts accepts (ZeRO stages, pipeline, sequence and expert ranks, rows at a time, recompute) is ordered by the time of a
step, and the first that fit are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from mt_core.errors import ConfigError, Fault, MtError
from mt_train.config.run import RunConfig
from mt_train.engine.layout_suggestion import with_changes
from mt_train.engine.plan import Plan
from mt_train.planning.candidates import Candidate, Room, accepted_plan, weigh
from mt_train.planning.counts import Counts
from mt_train.planning.dry_run import PaperRun, count_row_tokens
from mt_train.planning.fit import pinned_rows
from mt_train.planning.memory import ACCUMULATED, BYTES, Content
from mt_train.planning.step_time import (
    Cluster,
    StepTime,
    Traffic,
    Work,
    exchange_bytes,
    expert_bytes,
    step_time,
    zero_bytes,
)

FASTEST = 5
ROWS_AT_A_TIME = "train.micro_batch_size"
ALIKE = 1.01
"""Times up to this ratio are one where only the rows at a time differ: the first of them is shown."""
RECOMPUTED: dict[bool | str, float] = {False: 0.0, True: 1.0, "full": 1.0, "host": 1.0, "selective": 1.0}
"""Share of the forward that is computed again at most, by the value of ``train.activation_checkpointing``."""
MOST_SIZES = {"pipeline": 6, "sequence": 5, "expert": 4, "micro_batch_size": 8}
"""Values of each that are tried, so that there are fewer than 2,000 layouts."""


@dataclass(frozen=True, kw_only=True)
class TimedLayout:
    """A layout that fits: its memory, the time of a step, and what that comes to. ``changes``: the keys that make it."""

    changes: Mapping[str, Any]
    candidate: Candidate
    time: StepTime
    tokens_per_second: float
    mfu: float


@dataclass(frozen=True, kw_only=True)
class LayoutSearch:
    """The fastest layouts that fit, the best first; how many there are, how many of them the check accepts, and how many of the fastest
    did not fit."""

    fastest: tuple[TimedLayout, ...]
    tried: int
    accepted: int
    too_large: int


def find_layouts(paper: PaperRun, room: Room, cluster: Cluster) -> LayoutSearch:
    """Return the fastest layouts. Raises ``ConfigError`` for a run whose time nobody here can tell."""
    if paper.parts.config.parallel.offload != "none":
        problem = "nothing is known of the time that offloading takes."
        raise ConfigError([Fault(key="parallel.offload", problem=problem, fix="Leave it out, or leave out --plan.")])
    config, world = pinned_rows(paper.parts.config, paper.plan), paper.plan.world
    every = list(layout_changes(config, paper.plan))
    timed = []
    for changes in every:
        changed = with_changes(config, changes)
        plan = accepted_plan(paper, changed, world)
        if plan is None:
            continue
        try:
            timed.append((time_layout(paper, changed, plan, cluster), changes, changed))
        except MtError:  # a model that cannot be cut so, which is known when it is drawn
            continue
    timed.sort(
        key=lambda each: (round(each[0].seconds, 9), -each[1][ROWS_AT_A_TIME])
    )  # more rows are more work at once
    fastest: list[TimedLayout] = []
    too_large = 0
    for time, changes, changed in timed:
        if any(_is_like(each, time, changes) for each in fastest):
            continue
        candidate = weigh(paper, changed, world)
        if candidate is None or not room.holds(candidate):
            too_large += 1
            continue
        rate = candidate.plan.global_batch_size * candidate.row_tokens / time.seconds
        used = _operations(paper.counts, candidate) * rate / world
        peak = cluster.gpu.peak(candidate.plan.dtype, tf32=config.train.tf32)
        fastest.append(
            TimedLayout(changes=changes, candidate=candidate, time=time, tokens_per_second=rate, mfu=used / peak)
        )
        if len(fastest) == FASTEST:
            break
    return LayoutSearch(fastest=tuple(fastest), tried=len(every), accepted=len(timed), too_large=too_large)


def _is_like(found: TimedLayout, time: StepTime, changes: Mapping[str, Any]) -> bool:
    """Return whether a layout differs from one that was found in its rows at a time alone, and hardly in time."""
    same = {**changes, ROWS_AT_A_TIME: found.changes[ROWS_AT_A_TIME]} == dict(found.changes)
    return same and time.seconds <= ALIKE * found.time.seconds


def layout_changes(config: RunConfig, plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the keys of each layout; the rows of a step stay."""
    n_experts = getattr(config.model.options, "n_experts", None)
    # In 16 bits ZeRO 0 is ZeRO 1, but for optimizers of whole parameters, which run nowhere else.
    stages = [0, 1, 2, 3] if plan.dtype == "fp32" or plan.zero_stage == 0 else [1, 2, 3]
    pipelines = _divisors(plan.world, MOST_SIZES["pipeline"])
    sequences = _divisors(plan.world, MOST_SIZES["sequence"])
    experts = _divisors(plan.world, MOST_SIZES["expert"]) if n_experts else [1]
    layouts = [(stage, 1, expert) for stage, expert in product(stages, experts)]
    layouts += [(1, pipeline, 1) for pipeline in pipelines if pipeline > 1]
    for (stage, pipeline, expert), sequence in product(layouts, sequences):
        groups = plan.world // (pipeline * sequence)
        if not groups or plan.world % (pipeline * sequence) or plan.global_batch_size % groups:
            continue
        rows = plan.global_batch_size // groups
        for rows_at_a_time, recompute in product(_divisors(rows, MOST_SIZES["micro_batch_size"]), (False, True)):
            yield {
                "parallel.zero_stage": stage,
                "parallel.pipeline": pipeline,
                "parallel.sequence": sequence,
                "parallel.expert": expert,
                ROWS_AT_A_TIME: rows_at_a_time,
                "train.activation_checkpointing": recompute,
            }


def _divisors(number: int, most: int) -> list[int]:
    """Return the smallest divisors of a number, 1 among them."""
    found: list[int] = []
    for n in range(1, number + 1):
        if number % n == 0:
            found.append(n)
        if len(found) == most:
            break
    return found


def time_layout(paper: PaperRun, config: RunConfig, plan: Plan, cluster: Cluster) -> StepTime:
    """Return the time of a step in a layout: that of the stage with most to do. Raises ``MtError`` for a model that cannot be cut so."""
    row_tokens = count_row_tokens(config, paper.data)
    return max(
        (
            step_time(
                work, _traffic(config, plan, paper.counts, cluster, content, work), cluster.gpu, stages=plan.pipeline
            )
            for work, content in zip(
                _work(config, plan, paper.counts, cluster, row_tokens), paper.counts.contents(plan), strict=True
            )
        ),
        key=lambda time: time.seconds,
    )


def _operations(counts: Counts, candidate: Candidate) -> float:
    """Return what a step computes for each token, without recomputation and without gradients of frozen weights."""
    stages = candidate.plan.pipeline
    products, attention = _forward(counts, stages, candidate.row_tokens)
    return products * (1 + _backward(counts, stages)) + 3 * attention


def _forward(counts: Counts, stages: int, row_tokens: int) -> tuple[float, float]:
    """Return forward operations of products with weights, and of attention, for each token."""
    model = counts.meta(stages).model
    products = model.flops_per_token(1) / 3  # counted as three forwards: of operations, inputs' and weights' gradients
    return products, model.flops_per_token(row_tokens) / 3 - products


def _backward(counts: Counts, stages: int) -> float:
    """Return how many forwards a backward takes: what is frozen has no gradients of weights."""
    shape = counts.shape(stages)
    return 1 + sum(shape.trained[1:]) / max(1, sum(shape.layers[1:]))


def _work(config: RunConfig, plan: Plan, counts: Counts, cluster: Cluster, row_tokens: int) -> Iterator[Work]:
    """Yield what each stage computes, as its share of weights that multiply and of blocks."""
    shape, recomputed = counts.shape(plan.pipeline), _recomputed(config)
    sizes, total = (0, *shape.layers[1:]), max(1, sum(shape.layers[1:]))
    products, attention = _forward(counts, plan.pipeline, row_tokens)
    backward = _backward(counts, plan.pipeline)
    tokens = plan.micro_batch_size * row_tokens / plan.sequence
    if not recomputed and tokens > (config.train.mlp_tile_tokens or tokens):  # each tile once more in the backward
        products *= 1 + shape.tiled / total / (1 + backward)
    blocks = len(sizes) - 3
    for start, end in pairwise(counts.meta(plan.pipeline).bounds):
        here = len(range(max(start, 1), min(end, blocks + 1)))
        yield Work(
            products=products * sum(sizes[start:end]) / total,
            attention=attention * here / max(1, blocks) * (3 + recomputed) / (1 + backward + recomputed),
            channels=here * shape.width,
            backward=backward,
            recomputed=recomputed,
            tokens=tokens,
            rounds=plan.micro_batches,
            peak=cluster.gpu.peak(plan.dtype, tf32=config.train.tf32),
            number_bytes=BYTES[plan.dtype],
        )


def _traffic(config: RunConfig, plan: Plan, counts: Counts, cluster: Cluster, content: Content, work: Work) -> Traffic:
    """Return the seconds that a stage's ranks spend on the wire."""
    size, ranks, shape = BYTES[plan.dtype], plan.sharing_ranks, counts.shape(plan.pipeline)
    passes, width = 2 + work.recomputed, shape.width
    queries, keys = attention_widths(config, width)
    waited = exchange_bytes(
        ranks=plan.sequence,
        tokens=work.tokens,
        blocks=work.channels / width,
        query_width=queries,
        key_width=keys,
        number_bytes=size,
        passes=passes,
    ) / cluster.pair_bandwidth(plan.sequence)
    if plan.expert > 1:
        waited += expert_bytes(
            ranks=plan.expert,
            tokens=work.tokens,
            layers=shape.mixtures,
            chosen=shape.chosen,
            width=width,
            number_bytes=size,
            passes=passes,
        ) / cluster.pair_bandwidth(plan.expert)
    if plan.pipeline > 1:  # hidden states to the next stage, their gradients back
        waited += 2 * size * work.tokens * width / cluster.pair_bandwidth(plan.world)
    hidden = ending = updated = 0.0
    own = content.trained_expert_numbers
    for alike, numbers, trained, bandwidth in (
        (ranks, content.numbers - sum(content.experts), content.trained_numbers - own, cluster.bandwidth(ranks)),
        (ranks // plan.expert, sum(content.experts), own, cluster.copies_bandwidth(ranks, plan.expert)),
    ):
        each, last = zero_bytes(
            plan.zero_stage,
            ranks=alike,
            numbers=numbers,
            trained=trained,
            weight_bytes=size,
            gradient_bytes=ACCUMULATED[plan.dtype] if plan.zero_stage == 1 or plan.own_masters else size,
            reduced_once=_reduces_once(config, plan),
        )
        hidden += each / bandwidth
        ending += last / bandwidth
        updated += trained / (alike if plan.zero_stage > 0 else 1)
    return Traffic(hidden=hidden, waited=waited, ending=ending, updated=updated)


def _reduces_once(config: RunConfig, plan: Plan) -> bool:
    """Return whether each gradient goes to the rank that needs it alone. DeepSpeed's optimizer for bf16 at stage 1 has no such option."""
    asked = config.parallel.deepspeed.zero_optimization.use_multi_rank_bucket_allreduce is False
    return plan.own_masters or (asked and (plan.zero_stage == 2 or plan.dtype != "bf16"))


def _recomputed(config: RunConfig) -> float:
    return RECOMPUTED[config.train.activation_checkpointing]


def attention_widths(config: RunConfig, width: int) -> tuple[float, float]:
    """Return N·H and K·H; D for both where a model does not name its heads."""
    options: Any = config.model.options
    heads = getattr(options, "n_heads", None)
    if not heads:
        return width, width
    of_head = getattr(options, "head_width", None) or width / heads
    return heads * of_head, (getattr(options, "n_kv_heads", None) or heads) * of_head
