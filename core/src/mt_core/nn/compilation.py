"""Functions that ``torch.compile`` calls as they are.

``torch.compiler.disable`` imports the compiler, a third of what a process takes to start, whether a model is compiled or not. Here
functions are marked, and disabled when one is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
excluded: list[Callable[..., Any]] = []
"""All that is marked; whoever compiles a model disables them before (``mt_train.engine.compilation``)."""


def exclude_from_compile(function: _F) -> _F:
    """Mark a function of a module, or a method of a class of a module, that a compiled model calls as it is."""
    assert "<locals>" not in function.__qualname__, f"{function.__qualname__} cannot be found by its name"
    excluded.append(function)
    return function
