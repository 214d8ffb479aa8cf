"""Models without values, whose names and shapes are looked at, and how their parameters get memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mt_core.nn import AdaptedLinear

_DRAWS = frozenset({nn.init.normal_, nn.init.trunc_normal_, Tensor.normal_})


@contextmanager
def on_meta() -> Iterator[None]:
    """``torch.device("meta")``, where numbers are not drawn either: ``nn.Embedding`` draws its own, for which a meta tensor imports
    the compiler, a third of what a process takes to start.
    """
    with torch.device("meta"), _WithoutDraws():
        yield


def with_memory(parameter: nn.Parameter, device: torch.device, dtype: torch.dtype | None = None) -> nn.Parameter:
    """Return a parameter like one without memory, on a device; all that is noted on it is noted there."""
    empty = torch.empty_like(parameter, device=device, dtype=dtype)
    real = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    real.__dict__.update(parameter.__dict__)
    return real


def exchange(model: nn.Module, parameters: Sequence[tuple[nn.Parameter, nn.Parameter]]) -> None:
    """Put the second of each pair wherever the first is. By identity, so all of the old ones must be alive until the end."""
    new = {id(old): real for old, real in parameters}
    bases = [module.base for module in model.modules() if isinstance(module, AdaptedLinear)]  # no children of theirs
    for part in chain(model.modules(), bases):
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            if new.get(id(parameter), parameter) is not parameter:
                setattr(part, name, new[id(parameter)])


class _WithoutDraws(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        tensor = args[0] if args else named.get("tensor")
        return tensor if func in _DRAWS and isinstance(tensor, Tensor) and tensor.is_meta else func(*args, **named)
