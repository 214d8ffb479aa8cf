"""Memory of one rank, in bytes, before anything is built. Imports no torch.

Weights, gradients and optimizer state are what the engine and DeepSpeed 0.19 really keep, read from their code and compared with the
live tensors of real steps (tests/train/planning/test_memory.py): beside the sums of the ZeRO paper (https://arxiv.org/abs/1910.02054)
there are fp32 masters also in fp32, gradients that are flattened into a copy for the update, and buckets. Our own masters of bf16 at ZeRO 1
(engine/masters.py) take 16 bytes a parameter on one rank, and a bucket.

Letters: n trained numbers of a rank's layers, W ranks that share them (of experts that ranks divide: those that hold the same), g those
of the largest parameter group, b those of the largest bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mt_train.engine.plan import Plan
from mt_train.engine.settings import BUCKET_ELEMENTS, BUCKET_NUMBERS

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a number in a plan's precision."""
ACCUMULATED = {"fp32": 4, "bf16": 4, "fp16": 2}
"""Bytes of a gradient that is added up over micro-batches."""
REDUCED_AT_ONCE = 500_000_000
"""Numbers that stage 0 flattens at once to reduce them (``allreduce_bucket_size`` of DeepSpeed)."""
HELD_INPUTS = 2
"""Block inputs on the device where they wait on the host (``engine.recomputation.IN_FLIGHT``)."""
SUB_GROUP = 1_000_000_000
"""Numbers that stage 3 updates at once (``sub_group_size`` of DeepSpeed)."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """The numbers of a rank's layers: of each parameter, and of each trained one by parameter group.

    ``state_bytes`` is what the optimizer keeps for each number of a group; ``largest`` the numbers of the largest layer;
    ``quantized`` the bytes of weights that are no parameters. ``experts`` are parameters that ranks divide, as much of each as is here,
    and the last ``expert_groups`` groups consist of such. Without ``keeps_gradients`` each is used as it arrives, and freed.
    """

    parameters: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    state_bytes: tuple[float, ...]
    largest: int
    quantized: int = 0
    experts: tuple[int, ...] = ()
    expert_groups: int = 0
    keeps_gradients: bool = True

    @property
    def trained_numbers(self) -> int:
        """n."""
        return sum(map(sum, self.groups))

    @property
    def trained_expert_numbers(self) -> int:
        """Return those of n that ranks divide."""
        return sum(map(sum, self.groups[len(self.groups) - self.expert_groups :]))

    @property
    def numbers(self) -> int:
        """Return how many numbers are on a rank before ZeRO takes them apart."""
        return sum(self.parameters) + sum(self.experts)


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes on the device, and in the host's memory beside it where something is offloaded."""

    device: int
    host: int = 0

    @property
    def total(self) -> int:
        """Both, which on a CPU are the same memory."""
        return self.device + self.host


def weights(plan: Plan, content: Content) -> MemoryUse:
    """All of them at stages 0 to 2; at 3 a piece of each, rounded up. What is quantized is on every rank."""
    ranks, same = (plan.sharing_ranks, plan.sharing_ranks // plan.expert) if plan.zero_stage == 3 else (1, 1)
    held = sum(-(-number // ranks) for number in content.parameters) + sum(-(-n // same) for n in content.experts)
    size = BYTES[plan.dtype] * held
    if plan.offload == "parameters":
        return MemoryUse(device=content.quantized, host=size)
    return MemoryUse(device=size + content.quantized)


def optimizer_state(plan: Plan, content: Content) -> MemoryUse:
    """Count the optimizer's state, and in bf16 and from stage 1 on fp32 masters: flat copies that it updates, in fp32 as well."""
    master = 0 if plan.trains_weights else 4
    size = sum((master + kept) * share for kept, share in zip(content.state_bytes, _shares(plan, content), strict=True))
    return MemoryUse(device=round(size)) if plan.offload == "none" else MemoryUse(device=0, host=round(size))


def gradients(plan: Plan, content: Content) -> MemoryUse:
    """Count gradients at their largest: in the last backward of a step, or when the update has flattened a group into a copy.

    ========  ===========================  ===========================================
    stage     in the backward              in the update
    ========  ===========================  ===========================================
    0         4n, in bf16 2n or 4n         4n
    1, fp32   4n                           4 (n + g) / W
    1, bf16   2n (4n where added up)       2n + 2b
    1, theirs 6n: bf16, and fp32 sums      6n
    2         4n / W, and one bucket       4 (n + g) / W, in bf16 4n / W
    3         4n / W, and one bucket       4 (n + g) / W
    ========  ===========================  ===========================================

    Bf16 at stage 1 is ours first, then DeepSpeed's: ours adds micro-batches up in fp32 and frees each gradient as it comes, and else makes
    fp32 of a bucket at a time, of which W ranks keep 4n / W until the update.

    With an offloaded optimizer the update has a flat fp32 copy of the rank's share in the host's memory, 4n / W; stage 1
    adds up on the device, 4n, stage 2 on the host where a step has several micro-batches, and stage 3 always there.
    """
    size, added, stage = BYTES[plan.dtype], ACCUMULATED[plan.dtype], plan.zero_stage
    whole, shares = content.trained_numbers, _shares(plan, content)
    share, largest = sum(shares), max(shares, default=0)
    if stage == 3:
        largest = min(largest, SUB_GROUP)
    if plan.offload != "none":
        waiting = added * whole if stage == 1 else 0
        adds_up = stage == 3 or (stage == 2 and plan.micro_batches > 1)
        return MemoryUse(device=waiting, host=4 * share + (added * share if adds_up else 0))
    if not content.keeps_gradients:
        return MemoryUse(device=size * max((number for group in content.groups for number in group), default=0))
    if stage == 0:
        return MemoryUse(device=(4 if plan.own_masters else size) * whole)
    if plan.own_masters:
        return MemoryUse(device=_own_gradients(plan, content))
    if stage == 1 and plan.dtype == "bf16":
        return MemoryUse(device=size * whole + added * sum(_padded_sizes(plan, content)))
    copied = 0 if stage == 2 and plan.dtype == "bf16" else 4 * largest
    return MemoryUse(device=max(size * whole if stage == 1 else 0, added * share + copied))


def _own_gradients(plan: Plan, content: Content) -> int:
    """Bytes of gradients with masters of our own: when the first bucket is in fp32 and the rest is not, or when all are on their ranks."""
    whole, ranks = content.trained_numbers, plan.sharing_ranks
    bucket = max((_largest_bucket(group) for group in content.groups), default=0)
    pieces = 4 * whole // ranks if ranks > 1 else 0
    if plan.micro_batches > 1:
        return max(4 * whole + pieces * bucket // max(1, whole), pieces)
    return max(2 * whole + 2 * bucket + pieces * bucket // max(1, whole), pieces)


def _largest_bucket(group: Sequence[int]) -> int:
    """Numbers of the largest bucket that a group is cut into (``engine.buckets.cut``)."""
    largest = filled = 0
    for numbers in group:
        filled = numbers if filled + numbers > BUCKET_NUMBERS else filled + numbers
        largest = max(largest, filled)
    return largest


def buffers(plan: Plan, content: Content) -> MemoryUse:
    """Count what DeepSpeed sets aside to reduce and gather: buckets, which do not shrink with a small model.

    Stage 3 also has the layer at work whole, and the next ones up to a bucket.
    """
    size, stage = BYTES[plan.dtype], plan.zero_stage
    if stage == 0 and not plan.own_masters:
        return MemoryUse(device=size * min(content.trained_numbers, REDUCED_AT_ONCE) if plan.world > 1 else 0)
    if plan.dtype == "bf16" and stage <= 1 and plan.offload == "none":
        return MemoryUse(
            device=0
        )  # DeepSpeed reduces its flat fp32 sums in place; a bucket of ours is among the gradients
    twice = 2 if stage < 3 and (plan.pipeline > 1 or plan.overlaps) else 1
    bucket = twice * BUCKET_ELEMENTS * (ACCUMULATED[plan.dtype] if stage == 1 else size)
    gathered = size * (content.largest + min(BUCKET_ELEMENTS, content.numbers - content.largest))
    copies = size * sum(_shares(plan, content)) if plan.offload != "none" and stage < 3 else 0
    return MemoryUse(device=bucket + (gathered if stage == 3 else 0), host=copies)


def _shares(plan: Plan, content: Content) -> list[int]:
    """Numbers of each group that a rank updates."""
    every = _ranks(plan, content)
    if plan.zero_stage == 0:
        return [sum(group) for group in content.groups]
    if plan.zero_stage == 3:
        return [sum(-(-n // ranks) for n in group) for group, ranks in zip(content.groups, every, strict=True)]
    return [padded // ranks for padded, ranks in zip(_padded_sizes(plan, content), every, strict=True)]


def _padded_sizes(plan: Plan, content: Content) -> list[int]:
    """Numbers of each flat group at stages 1 and 2, filled up so that every rank's piece is even."""
    units = [2 * ranks for ranks in _ranks(plan, content)]
    return [-(-sum(group) // unit) * unit for group, unit in zip(content.groups, units, strict=True)]


def _ranks(plan: Plan, content: Content) -> list[int]:
    """Return W of each group, the ranks that share it."""
    dense = len(content.groups) - content.expert_groups
    return [plan.sharing_ranks] * dense + [plan.sharing_ranks // plan.expert] * content.expert_groups


# ---------------------------------------------------------------------------------------------------------- activations


@dataclass(frozen=True, kw_only=True)
class LayerActivations:
    """Bytes of one micro-batch: what a layer keeps for its backward, what reaches it, what its attention gives, and what one tile of its
    MLP keeps in the backward."""

    kept: int
    entering: int
    attention: int = 0
    tile: int = 0


def activations(
    plan: Plan, stage: int, layers: Sequence[LayerActivations], head: int, *, recompute: str | None, media: int = 0
) -> MemoryUse:
    """An estimate for a stage of a pipeline (0 without one), whose ``layers`` come in order; ``head`` bytes on the last, those of encoders
    of ``media``, which are never recomputed, on the first.

    What a layer keeps is counted (``planning/activations.py``) where Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198)
    have 34 · s · b · h for theirs. As there, recomputing leaves what reaches each layer, and one layer whole; and a stage
    of P has min(P - stage, micro-batches) of them at a time (one forward, one backward; section 4.2.3). ``selective`` leaves what
    attention gives as well; of ``host`` the inputs of two layers are on the device. Of an MLP in tiles one is there whole.
    """
    in_flight = min(plan.pipeline - stage, max(1, plan.micro_batches))
    host = 0
    if recompute:
        inputs = [min(layer.entering, layer.kept) for layer in layers]
        beside = sum(layer.attention for layer in layers) if recompute == "selective" else 0
        moved = in_flight * sum(inputs) - min(in_flight * sum(inputs), HELD_INPUTS * max(inputs, default=0))
        host = moved if recompute == "host" and plan.device == "cuda" else 0
        kept = in_flight * (sum(inputs) + beside) - host + max((layer.kept for layer in layers), default=0)
    else:
        kept = in_flight * sum(layer.kept for layer in layers)
    tile = max((layer.tile for layer in layers), default=0)
    return MemoryUse(device=kept + tile + in_flight * media + head, host=host)


def head_activations(plan: Plan, *, tokens: int, width: int, vocabulary: int, chunk: int) -> int:
    """Bytes of the head and its loss: hidden states and their gradient, the weight's gradient in fp32, and one chunk of logits.

    ``tokens`` of a micro-batch, all of them trained. The head never has the logits of a whole batch (``nn/loss.py``).
    """
    size = BYTES[plan.dtype]
    hidden, gradient = 2 * size * tokens * width, 4 * vocabulary * width
    half = 2 * size if size < 4 else 0  # the chunk's logits and their gradient once more, in half precision
    return hidden + gradient + (4 + half) * min(tokens, chunk) * vocabulary
