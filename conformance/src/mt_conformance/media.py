"""What checks of encoders and of projectors share: modules with values, what a call goes through, and a process without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mt_core.nn import Encoder, Projector

Media = Encoder | Projector
_TORCH = ("torch", "torch.nn", "torch.nn.functional", "mt_core.nn")


def draw(module: Media, seed: int = 0) -> list[str]:
    """Draw every parameter as a run does, and return the names of those that have no finite values afterwards."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_(torch.nan)
            module.init_tensor(name, parameter.data, generator)
    return [name for name, parameter in module.named_parameters() if not parameter.isfinite().all()]


def move(module: Media, seed: int = 1) -> None:
    """Move every parameter a little, so that no bias is 0 and no norm 1: one that is left out of a formula is seen then."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


def without_gradient(module: Media) -> list[str]:
    """Return the parameters that a backward did not reach, or reached with values that are not finite."""
    return [
        name for name, each in module.named_parameters() if each.grad is None or not bool(each.grad.isfinite().all())
    ]


def calls_of(module: Media, call: Callable[[], object]) -> list[str]:
    """Return the names of the modules that a call goes through, in order."""
    calls: list[str] = []

    def record(name: str) -> Callable[..., None]:
        return lambda *_: calls.append(name or "itself")

    hooks = [each.register_forward_hook(record(name)) for name, each in module.named_modules()]
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def describe_other_calls(calls: list[str], others: list[str]) -> str:
    """Say how the calls of some items differ from those of others; empty where they are the same."""
    if calls == others:
        return ""
    more = sorted({name for name in {*calls, *others} if calls.count(name) != others.count(name)})
    if not more:
        return "the same modules are called in another order"
    return f"{more[0]!r} is called {calls.count(more[0])} times for some items, and {others.count(more[0])} times for others"


def shapes_of(module: Media) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter."""
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def real_parameters(module: Media) -> list[str]:
    """Return the parameters that have memory."""
    return [name for name, parameter in module.named_parameters() if not parameter.is_meta]


def most_apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference; infinite where the shapes are not the same."""
    if one.shape != other.shape:
        return float("inf")
    return float((one.detach().float() - other.detach().float()).abs().max()) if one.numel() else 0.0


@contextmanager
def torch_refused() -> Iterator[None]:
    """Whoever imports torch inside gets an ``ImportError``."""
    held = {name: sys.modules[name] for name in _TORCH if name in sys.modules}
    sys.modules.update(dict.fromkeys(_TORCH))  # type: ignore[arg-type]  # None halts an import
    try:
        yield
    finally:
        for name in _TORCH:
            del sys.modules[name]
        sys.modules.update(held)
