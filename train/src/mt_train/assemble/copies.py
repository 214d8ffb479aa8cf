"""Whole models beside the engine, one on each rank: a copy of the trained weights, and the model of step 0.

A copy runs on one rank alone where the trained model cannot: over the stages of a pipeline, where ranks share rows, and at ZeRO 3.
"""

from __future__ import annotations

import sys
from functools import cached_property

import torch

from mt_core.errors import UsageError
from mt_core.groups import whole_shape
from mt_core.nn import SdpaAttention, TrainModel
from mt_core.tracking.logs import notice
from mt_train.assemble.base_files import first_adapter
from mt_train.assemble.load import build_empty, load_model
from mt_train.assemble.parts import Parts
from mt_train.engine.engine import Engine
from mt_train.engine.memory_probe import available_memory
from mt_train.engine.precision import DTYPES, cast_model
from mt_train.engine.processes import agree

SHARE = 0.5
"""Part of the free memory that a copy may take: what it writes needs a cache, and the step to come its activations."""


class Copies:
    """Copies of one run. Every rank asks for the same ones."""

    def __init__(self, parts: Parts, engine: Engine) -> None:
        self._parts, self._engine = parts, engine
        self._version: int | None = None

    def trained(self, version: int) -> TrainModel:
        """Return the copy of the trained weights, filled once for each version. Collective.

        With an optimizer that averages these are the weights that gradients are taken at. Raises ``UsageError`` for quantized weights.
        """
        if self._version != version:
            self._fill(self._empty)
            self._version = version
        return self._empty

    @cached_property
    def reference(self) -> TrainModel:
        """The model of step 0, from what the run began with."""
        parts = self._parts
        self._refuse_quantized()
        if self._engine.process.is_main:
            notice("reference: each rank holds the model of step 0 beside the one that is trained")
        device = self._engine.process.device
        # An adapter without values of before adds nothing to its base at step 0, or only writes it down otherwise.
        adapted = first_adapter(parts) is not None
        return self._finish(load_model(parts, None, _say_nothing, device=device, adapted=adapted))

    @cached_property
    def has_room(self) -> bool:
        """Whether every rank has memory for a copy. Collective when it is first asked."""
        if self._parts.quantizer() is not None:
            return agree(False)
        numbers = sum(torch.Size(whole_shape(each)).numel() for each in self._engine.module.model.parameters())
        free = self._free_bytes()
        return agree(free is None or numbers * DTYPES[self._engine.plan.dtype].itemsize <= SHARE * free)

    def _free_bytes(self) -> float | None:
        """Bytes that this rank may take; ``None`` where that cannot be told. Ranks of one machine share the memory of its processors."""
        process = self._engine.process
        if process.device.type == "cuda":
            return float(torch.cuda.mem_get_info(process.device)[0])
        free = available_memory() if sys.platform == "linux" else None
        return None if free is None else free / process.world

    @cached_property
    def _empty(self) -> TrainModel:
        """The model with its adapter, on this rank's device."""
        self._refuse_quantized()
        model = build_empty(self._parts, self._engine.process.device)
        adapter = self._parts.adapter()
        adapter.plan, adapter.has_values = self._engine.adapter.plan, True
        adapter.inject(model)
        return self._finish(model)

    def _finish(self, model: TrainModel) -> TrainModel:
        model.attention = SdpaAttention(self._parts.config.train.attention)
        cast_model(model, self._engine.plan.dtype)
        return model.eval().requires_grad_(False)

    @torch.no_grad()
    def _fill(self, model: TrainModel) -> None:
        """Give the copy the values of today; those of frozen weights once."""
        own = dict(model.named_parameters())
        only = None if self._version is None else self._engine.names_to_save()
        for name, value in self._engine.whole_weights(only=only, averaged=False):
            own[name].copy_(value)

    def _refuse_quantized(self) -> None:
        if self._parts.quantizer() is not None:
            raise UsageError(
                f"quantizer {self._parts.config.quantizer.name} stores weights in fewer bits, of which no copy is made; train on a layout"
                " where each rank has all weights (ZeRO 0 to 2), with an adapter that leaves its base as it is (lora)"
            )


def _say_nothing(text: str) -> None:
    """Say nothing: what is read was told when the run began."""
