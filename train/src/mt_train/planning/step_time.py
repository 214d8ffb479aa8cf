"""Time of an optimizer step on paper: operations, bytes of memory and bytes on the wire over what a GPU does of each. Imports no torch.

The constants are fitted to published runs of other frameworks (``benchmarks/plan_constants.py``); two models of ours on one H200 were up to
15 % slower than they say (docs/log.md, "The first GPU"). They rank layouts that differ by a fifth, and promise no throughput.

Letters: n numbers of a rank's layers before ZeRO, W ranks that share them, p stages of a pipeline, m micro-batches, t tokens of one on a
rank, L blocks, D model width, N·H and K·H widths of queries and of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mt_train.planning.gpus import Gpu

WIRE = 0.8
"""Share of a link's bandwidth that collectives reach: 235 of 300 GB/s in nccl-tests on A100s (``gpus.LINKS``)."""
UPDATE_BYTES = 24
"""Bytes of memory that AdamW reads and writes for a number: gradient, master and two moments in fp32, of which three are written, and the
weight in half precision."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """``products`` and ``attention``: shares of the peak that matrix products and attention reach, by architecture. ``pointwise``: numbers
    read and written for a token and each channel of a block, beside products. ``overlap``: share of the shorter of computing and
    exchanging that the longer one hides."""

    products: Mapping[str, float]
    attention: Mapping[str, float]
    pointwise: float
    overlap: float


CONSTANTS = Constants(
    products={"hopper": 0.88, "ampere": 0.976},
    attention={"hopper": 0.16, "ampere": 0.285},
    pointwise=291,
    overlap=0.036,
)
"""Fitted to 92 rows (rms 3.5 %). ``products`` has what else is proportional to products; exchanging hardly hides behind computing there."""
SMALLEST = 700_000_000
"""Numbers of about the smallest model among those runs. Below, starting kernels takes a time that is not counted."""
FITTED_LIKE = "hopper"
"""Architecture whose constants are taken for one without published runs."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs, how many of them a node has, and bytes a second that each sends to other nodes (one way)."""

    gpu: Gpu
    per_node: int
    network: float

    def bandwidth(self, ranks: int) -> float:
        """Return bytes a second that a collective brings to each of neighbouring ranks.

        A ring over several nodes runs through the cards of all GPUs of a node, so each rank gets what they bring together.
        """
        if ranks <= self.per_node:
            return WIRE * self.gpu.link
        return WIRE * min(self.gpu.link, self.per_node * self.network)

    def pair_bandwidth(self, ranks: int) -> float:
        """Return bytes a second between two ranks of so many neighbours, through the card of one GPU where they are on several nodes."""
        return WIRE * (self.gpu.link if ranks <= self.per_node else min(self.gpu.link, self.network))

    def copies_bandwidth(self, ranks: int, parts: int) -> float:
        """Return bytes a second that a collective brings to each of those of so many ranks that hold one of ``parts`` of the experts.

        They are ``parts`` apart, so that as many rings as a node has such ranks share its cards.
        """
        if ranks <= self.per_node:
            return WIRE * self.gpu.link
        return WIRE * min(self.gpu.link, max(1, self.per_node // parts) * self.network)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Cost of a micro-batch on the rank with most of it, by token: forward operations of ``products`` with weights and of ``attention``,
    ``channels`` (L·D). ``backward``: how many forwards it takes; ``recomputed``: share of the forward that is done again.
    ``tokens`` t on a rank; ``rounds`` m. ``peak``: operations a second."""

    products: float
    attention: float
    channels: float
    backward: float
    recomputed: float
    tokens: float
    rounds: int
    peak: float
    number_bytes: int = 2


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Seconds on the wire: for each micro-batch beside its computing (``hidden``) and between it (``waited``), once a step (``ending``);
    ``updated``: numbers that a rank updates."""

    hidden: float
    waited: float
    ending: float
    updated: float


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of an optimizer step by what they are spent on; they add up to its time."""

    compute: float
    memory: float
    network: float
    bubble: float

    @property
    def seconds(self) -> float:
        return self.compute + self.memory + self.network + self.bubble

    @property
    def shares(self) -> dict[str, float]:
        """Return the share of each in the step."""
        return {name: getattr(self, name) / self.seconds for name in ("compute", "memory", "network", "bubble")}

    @property
    def bound(self) -> str:
        """Return what takes most of the step."""
        return max(self.shares.items(), key=lambda each: each[1])[0]


def step_time(
    work: Work, traffic: Traffic, gpu: Gpu, *, stages: int = 1, constants: Constants | None = None
) -> StepTime:
    """Return the time of a step: m micro-batches one after the other, filling and emptying a pipeline of p ``stages`` (1F1B: p - 1 of
    m + p - 1 are idle, https://arxiv.org/abs/2104.04473 section 2.2), what travels behind the last one, and the update."""
    known = constants or CONSTANTS
    kind = gpu.architecture if gpu.architecture in known.products else FITTED_LIKE
    passes = 1 + work.backward + work.recomputed
    operations = work.products / known.products[kind] + work.attention / known.attention[kind]
    compute = work.tokens * passes * operations / work.peak
    touched = known.pointwise * work.channels * work.number_bytes * (passes / (1 + work.backward))
    memory = work.tokens * touched / gpu.memory_bandwidth
    busy = compute + memory
    exchanged = traffic.hidden - known.overlap * min(busy, traffic.hidden) + traffic.waited
    return StepTime(
        compute=work.rounds * compute,
        memory=work.rounds * memory + UPDATE_BYTES * traffic.updated / gpu.memory_bandwidth,
        network=work.rounds * exchanged + traffic.ending,
        bubble=(stages - 1) * (busy + exchanged),
    )


def zero_bytes(
    stage: int,
    *,
    ranks: int,
    numbers: float,
    trained: float,
    weight_bytes: int,
    gradient_bytes: int,
    reduced_once: bool = False,
) -> tuple[float, float]:
    """Return bytes that a rank receives for each micro-batch and once a step, to share n ``numbers``, some of them trained, among W ranks.

    =====  ========================================  ==================================================
    stage  a micro-batch                             a step
    =====  ========================================  ==================================================
    0      0                                         gradients all-reduced: twice
    1      0                                         the same, or reduced once; updated weights gathered
    2      the same                                  updated weights gathered
    3      weights gathered twice, gradients reduced 0
    =====  ========================================  ==================================================

    At stages 1 and 2 DeepSpeed all-reduces a bucket and keeps its part, where the paper reduces it once. So do masters of our own, and
    DeepSpeed with ``use_multi_rank_bucket_allreduce: false`` (``reduced_once``). ``gradient_bytes``: of a gradient as it travels, 4 where
    bf16 sums are (stage 1). A ring sends (W - 1) / W of each.
    """
    ring = (ranks - 1) / ranks
    weights, gradients = ring * weight_bytes, ring * gradient_bytes * trained
    if stage == 3:
        return 2 * weights * numbers + gradients, 0.0
    if stage == 0:
        return 0.0, 2 * gradients
    reduced, gathered = (1 if reduced_once else 2) * gradients, weights * trained
    return (reduced, gathered) if stage == 2 else (0.0, reduced + gathered)


def exchange_bytes(
    *, ranks: int, tokens: float, blocks: float, query_width: float, key_width: float, number_bytes: int, passes: float
) -> float:
    """Return bytes that a rank sends for a micro-batch of t ``tokens`` where ``ranks`` share rows: queries and results (N·H) and keys and
    values (K·H) of each block change hands, forward, backward, and again where that is recomputed (https://arxiv.org/abs/2309.14509)."""
    return (ranks - 1) / ranks * number_bytes * tokens * blocks * passes * 2 * (query_width + key_width)


def expert_bytes(
    *, ranks: int, tokens: float, layers: int, chosen: int, width: float, number_bytes: int, passes: float
) -> float:
    """Return bytes that a rank sends for a micro-batch where ``ranks`` divide the experts of ``layers``: each token to those that it chose,
    and back."""
    return (ranks - 1) / ranks * number_bytes * tokens * layers * passes * 2 * chosen * width
