"""Builds a model in place for a plan: every rank holds its share, and every tensor gets the same values on any layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.engine.plan import Plan
from mt_core.engine.processes import Process
from mt_core.errors import WeightsError
from mt_core.nn import TrainModel, tensor_generator

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""A plan's precision as torch's."""

TensorSource = Mapping[str, Callable[[], Tensor]]
"""Parameter name → a function that loads this one tensor."""


def build_model(
    make: Callable[[], TrainModel], *, plan: Plan, settings: dict[str, Any], deepspeed: ModuleType, process: Process
) -> TrainModel:
    """The model on its device, values still arbitrary; under ZeRO 3 partitioned layer by layer while it is built.

    ``zero.Init`` gets no ``dtype``: with ``torch.float32`` it silently builds bf16 on a CPU.
    """
    if plan.zero_stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings):
            model = make()
        wanted = DTYPES[plan.dtype]
        found = {parameter.dtype for parameter in model.parameters()}
        assert found == {wanted}, f"zero.Init built {found}, not {wanted}: its dtype rule has changed"
        return model
    with process.device:
        return make()


def fill_model(
    model: TrainModel, source: TensorSource, *, seed: int, process: Process, only: Container[str] | None = None
) -> None:
    """Give every parameter its value: from ``source`` where it has the name, else drawn from (seed, name).

    A parameter on the meta device belongs to another pipeline stage, and stays there; ``only`` names those that are meant.

    Raises ``WeightsError`` that lists every tensor whose shape is not its parameter's.
    """
    wrong: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.is_meta or (only is not None and name not in only):
            continue
        with gathered([parameter], write=True):
            if process.is_main or not is_partitioned(parameter):
                value = _value(model, name, parameter, source, seed)
                if value.shape == parameter.shape:
                    with torch.no_grad():
                        parameter.copy_(value)
                else:
                    wrong.append(
                        f"{name} is {tuple(value.shape)} in the weights and {tuple(parameter.shape)} in the model"
                    )
    if wrong:
        raise WeightsError(f"{len(wrong)} tensors have another shape:\n  " + "\n  ".join(wrong))


def _value(model: TrainModel, name: str, parameter: nn.Parameter, source: TensorSource, seed: int) -> Tensor:
    if name in source:
        return source[name]()
    value = torch.empty(parameter.shape, dtype=torch.float32)
    model.init_tensor(name, value, tensor_generator(seed, name))
    return value


def is_partitioned(parameter: nn.Parameter) -> bool:
    """Whether ZeRO 3 holds only a slice of it here."""
    return hasattr(parameter, "ds_id")


@contextlib.contextmanager
def gathered(parameters: list[nn.Parameter], *, write: bool = False) -> Iterator[None]:
    """Whole parameters inside; with ``write``, what rank 0 wrote reaches every rank. All ranks must enter."""
    partitioned = [parameter for parameter in parameters if is_partitioned(parameter)]
    if not partitioned:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(partitioned, modifier_rank=0 if write else None):
        yield
