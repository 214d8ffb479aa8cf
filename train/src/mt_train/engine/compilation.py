"""Disables the compiler: in the functions that a compiled model calls as they are, and while texts of any length are read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

import torch

from mt_core.nn.compilation import excluded


def disable_excluded() -> None:
    """Put ``torch.compiler.disable`` around all that is marked by now. Called before a model is compiled."""
    while excluded:
        function = excluded.pop()
        *path, name = function.__qualname__.split(".")
        owner = reduce(getattr, path, sys.modules[function.__module__])
        setattr(owner, name, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


@contextmanager
def run_uncompiled() -> Iterator[None]:
    """Run compiled modules as they are written: each new length of a row would be compiled anew."""
    with torch.compiler.set_stance("force_eager"):
        yield
