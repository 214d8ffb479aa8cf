"""Models without values, whose names and shapes are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DRAWS = frozenset({nn.init.normal_, nn.init.trunc_normal_, Tensor.normal_})


@contextmanager
def on_meta() -> Iterator[None]:
    """``torch.device("meta")``, where numbers are not drawn either: ``nn.Embedding`` draws its own, for which a meta tensor imports
    the compiler, a third of what a process takes to start.
    """
    with torch.device("meta"), _WithoutDraws():
        yield


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
