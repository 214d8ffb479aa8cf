"""Precision of a model's weights: 16 bits, and fp32 for what it has ``kept``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from mt_core.nn import TrainModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""A plan's precision as torch's."""


def cast_model(model: TrainModel, dtype: str) -> None:
    """Give weights and buffers this precision; ``kept`` parameters stay in fp32."""
    with keep_precision(model, dtype):
        model.to(DTYPES[dtype])


@contextlib.contextmanager
def keep_precision(model: TrainModel, dtype: str) -> Iterator[None]:
    """Cast ``kept`` parameters to the run's precision inside, as DeepSpeed insists on for all; afterwards they are in
    fp32 again, bit for bit, partitioned ones too. They were filled in fp32, as ``widen_kept`` has left them."""
    tensors = [] if dtype == "fp32" else list(_kept_tensors(model))
    values = [each.data for each in tensors]
    for each in tensors:
        each.data = each.data.to(DTYPES[dtype])
    yield
    for each, value in zip(tensors, values, strict=True):
        each.data = value.to(each.device)


def widen_kept(model: TrainModel) -> None:
    """Give ``kept`` parameters fp32, which were built in the run's precision. They have no values yet."""
    for each in _kept_tensors(model):
        each.data = each.data.float()


def _kept_tensors(model: TrainModel) -> Iterator[Tensor]:
    """Yield the parameters on this rank that the model has ``kept``, and the slices of those that ZeRO 3 has partitioned."""
    kept = set(model.kept_names())
    for name, parameter in model.named_parameters():
        if name in kept and not parameter.is_meta and parameter.is_floating_point():
            yield parameter
            if hasattr(parameter, "ds_tensor"):
                yield parameter.ds_tensor
