"""Functions that ``torch.compile`` calls as they are.

``torch.compiler.disable`` imports the compiler, a third of what a process takes to start, whether a model is compiled or not. Here
functions are marked, and disabled when one is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., Any])
_marked: list[Callable[..., Any]] = []


def exclude_from_compile(function: _F) -> _F:
    """Mark a function of a module, or a method of a class of a module, that a compiled model calls as it is."""
    assert "<locals>" not in function.__qualname__, f"{function.__qualname__} cannot be found by its name"
    _marked.append(function)
    return function


def disable_excluded() -> None:
    """Put ``torch.compiler.disable`` around all that is marked by now. Called before a model is compiled."""
    while _marked:
        function = _marked.pop()
        *path, name = function.__qualname__.split(".")
        owner = reduce(getattr, path, sys.modules[function.__module__])
        setattr(owner, name, torch.compiler.disable(function))  # type: ignore[no-untyped-call]
