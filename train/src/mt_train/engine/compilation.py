"""Compiles blocks, and disables the compiler: in functions that they call as they are, and while texts of any length are read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.nn import BlockContext
from mt_core.nn.compilation import excluded
from mt_core.nn.rotary import Rotary


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


def compile_blocks(blocks: Iterable[nn.Module], **options: Any) -> None:
    """Compile blocks, each in place. What depends on a batch, and not on a block, is computed in front of the first one: rotary tables,
    and the documents that attention sees."""
    disable_excluded()
    for block in blocks:
        compiled = torch.compile(block._call_impl, dynamic=False, **options)
        block._compiled_call_impl = partial(_run, compiled, rotaries_of(block))  # what nn.Module.compile sets


def _run(compiled: Callable[..., Tensor], rotaries: Sequence[Rotary], hidden: Tensor, context: BlockContext) -> Tensor:
    for rotary in rotaries:
        rotary.tables(context)
    if (prepare := getattr(context.attention, "prepare", None)) is not None:
        prepare(context)
    return compiled(hidden, context)


def rotaries_of(block: nn.Module) -> list[Rotary]:
    """Return the rotary embeddings that the modules of a block have as attributes, each once."""
    found = {
        id(value): value for module in block.modules() for value in vars(module).values() if isinstance(value, Rotary)
    }
    return list(found.values())
