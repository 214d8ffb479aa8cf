"""Costs of a run: tokens, floating-point operations, memory."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from mt_core import CallbackContext, Control, MtConfig, whole_shape

if TYPE_CHECKING:
    from mt_core.nn import Batch, TrainModel

PEAK_TERAFLOPS = {
    "H100": 989.0,  # https://www.nvidia.com/en-us/data-center/h100, dense, as all here
    "H100 NVL": 835.0,
    "H100 PCIe": 756.0,
    "H200": 989.0,  # https://www.nvidia.com/en-us/data-center/h200
    "H200 NVL": 835.0,
    "A100": 312.0,  # https://www.nvidia.com/en-us/data-center/a100
    "L40": 181.0,  # https://www.nvidia.com/en-us/data-center/l40
    "L40S": 362.0,  # https://www.nvidia.com/en-us/data-center/l40s
    "L4": 121.0,  # https://www.nvidia.com/en-us/data-center/l4
}
"""Peak of bf16 in teraFLOP/s by a part of the device's name; the longest that fits holds."""


class FlopsConfig(MtConfig):
    """Peak of the device."""

    peak_teraflops: float | None = Field(
        None,
        gt=0,
        description="peak of one device (teraFLOP/s, dense); default is that of well-known GPUs in bf16, else no mfu",
    )


class Flops:
    """Adds to each record ``tokens_seen`` (places computed so far, prompts and padding included), ``petaflop`` (so far, all
    devices), ``teraflops`` (per second and device) and ``mfu`` (share of the peak, https://arxiv.org/abs/2204.02311).

    The operations are the model's own count (``flops_per_token``) without gradients that nobody computes, of frozen weights and below
    the first trained layer; without recomputation; and those of matrices in encoders of media, their attention left out.
    The other ranks are taken to compute as many places as this one.
    """

    def __init__(self, config: FlopsConfig) -> None:
        self._peak = config.peak_teraflops
        self._began = 0.0
        self._seen, self._petaflop = 0, 0.0

    def on_model_built(self, context: CallbackContext) -> None:
        """Look the peak up."""
        if self._peak is None:
            self._peak = _known_peak()

    def on_step_start(self, context: CallbackContext) -> None:
        """Start the clock: from here on the step computes."""
        self._began = time.perf_counter()

    def on_after_optimizer_step(self, context: CallbackContext) -> Control:
        """Count this step."""
        assert context.weights is not None, "a run has weights"
        seconds = max(time.perf_counter() - self._began, 1e-9)
        places = sum(batch.input_ids.numel() for batch in context.batches)
        model, shares = context.model, computed_shares(context.model)
        flop = sum(
            batch.input_ids.numel() * token_flop(model, batch.row_tokens, shares) + media_flop(model, batch)
            for batch in context.batches
        )
        self._seen += places * context.weights.world
        self._petaflop += flop * context.weights.world / 1e15
        rate = flop / seconds / 1e12
        figures = {"tokens_seen": self._seen, "petaflop": self._petaflop, "teraflops": rate}
        return Control(metrics=figures if self._peak is None else {**figures, "mfu": rate / self._peak})

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted so far."""
        return {"tokens_seen": self._seen, "petaflop": self._petaflop}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        self._seen, self._petaflop = state["tokens_seen"], state["petaflop"]


class ComputedShares(NamedTuple):
    """Shares of a model's operations that a step computes, of its products and of its attention."""

    products: float
    attention: float


def computed_shares(model: TrainModel) -> ComputedShares:
    """Return what is computed of a model as it is trained now: a callback or an adapter may freeze other layers by the next step.

    Of a layer's products a third are forward, a third gradients of its weights and a third of its inputs; attention has no weights.
    """
    embedding, *layers = (layer.module for layer in model.layers())
    blocks = len(layers) - 2  # then a norm and the head
    reached = any(
        each.requires_grad for part in (embedding, model.media) if part is not None for each in part.parameters()
    )
    weights, computed, attended = 0, 0.0, 0.0
    for number, layer in enumerate(layers):
        here, trained = count_weights(layer)
        reached = reached or trained > 0
        weights += here
        computed += (here + trained + here * reached) / 3
        attended += (1 + 2 * reached) / 3 if number < blocks else 0
    return ComputedShares(computed / weights, attended / max(1, blocks))


def token_flop(model: TrainModel, length: int, shares: ComputedShares) -> float:
    """Return the operations of a step for each token in rows of ``length``."""
    products = model.flops_per_token(1)
    attention = model.flops_per_token(length) - products
    return products * shares.products + attention * shares.attention


def count_weights(layer: Any) -> tuple[int, int]:
    """Return the numbers of a layer's weights, stored ones as they multiply, and how many of them are trained."""
    from mt_core.nn import AdaptedLinear, StoredLinear

    found = trained = 0
    for module in layer.modules():
        for parameter in module.parameters(recurse=False):
            numbers = math.prod(whole_shape(parameter))
            found += numbers
            trained += numbers * parameter.requires_grad
        base = module.base if isinstance(module, AdaptedLinear) else module
        if isinstance(base, StoredLinear) and "weight" not in dict(base.named_parameters(recurse=False)):
            found += base.in_features * base.out_features
    return found, trained


def media_flop(model: TrainModel, batch: Batch) -> float:
    """Return the operations of encoders and projectors on the media of a batch.

    For each weight of a matrix and each feature, or hidden state of a projector, 2, and 2 more for each gradient: its own, and that of its
    inputs. Attention in encoders is left out.
    """
    from torch import nn

    found = 0.0
    if model.media is None:
        return found
    for name, media in batch.media.items():
        inputs = False
        for part, count in (("encoder", sum(media.features)), ("projector", sum(media.tokens))):
            modules = [
                each for each in model.media.get_submodule(f"{name}.{part}").modules() if type(each) is not nn.Embedding
            ]
            matrices = [
                each for module in modules for each in module.parameters(recurse=False) if len(whole_shape(each)) > 1
            ]
            trains = any(each.requires_grad for each in matrices)
            inputs = inputs or (trains and part == "encoder")
            found += (2 + 2 * trains + 2 * inputs) * count * sum(math.prod(whole_shape(each)) for each in matrices)
    return found


def _known_peak() -> float | None:
    import torch

    if not torch.cuda.is_available():
        return None
    return known_peak(torch.cuda.get_device_name())


def known_peak(name: str) -> float | None:
    """Return the peak of a device, which is named as torch names it, in teraFLOP/s; ``None`` for one that is not known."""
    return PEAK_TERAFLOPS.get(max((part for part in PEAK_TERAFLOPS if part in name), key=len, default=""))


class MemoryConfig(MtConfig):
    """The memory tracker has no options."""


class Memory:
    """Adds to each record, of rank 0: ``resident_gib`` (of the process, now), and on a GPU ``allocated_gib`` (now) and
    ``reserved_gib`` (held by torch). ``memory_gib``, which is always there, only ever grows.
    """

    def __init__(self, config: MemoryConfig) -> None:
        pass

    def on_after_optimizer_step(self, context: CallbackContext) -> Control:
        """Read what the system says."""
        import torch

        figures = {}
        if (resident := resident_gib()) is not None:
            figures["resident_gib"] = resident
        if torch.cuda.is_available():
            figures["allocated_gib"] = torch.cuda.memory_allocated() / 2**30
            figures["reserved_gib"] = torch.cuda.memory_reserved() / 2**30
        return Control(metrics=figures)


def resident_gib() -> float | None:
    """Return the memory that this process holds, in GiB; Linux only."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError):
        return None
    import resource

    return pages * resource.getpagesize() / 2**30
