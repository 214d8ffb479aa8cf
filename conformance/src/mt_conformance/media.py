"""Parts of the checks of encoders and of projectors: modules with values, what a call goes through, and a process without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mt_core.errors import DataError
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


def most_apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference; infinite where the shapes are not the same."""
    if one.shape != other.shape:
        return float("inf")
    return float((one.detach().float() - other.detach().float()).abs().max()) if one.numel() else 0.0


@contextmanager
def torch_refused() -> Iterator[None]:
    """Refuse every import of torch inside with an ``ImportError``."""
    held = {name: sys.modules[name] for name in _TORCH if name in sys.modules}
    sys.modules.update(dict.fromkeys(_TORCH))  # type: ignore[arg-type]  # None halts an import
    try:
        yield
    finally:
        for name in _TORCH:
            del sys.modules[name]
        sys.modules.update(held)


def outcome(call: Any) -> str:
    """Return the name of what a call raises; empty where it raises nothing."""
    try:
        call()
    except DataError:
        return "DataError"
    except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises is judged by the caller
        return f"{type(error).__name__}: {error}"
    return ""


def check_first_draw(build: Callable[[], Media]) -> None:
    """Assert that ``init_tensor`` fills every parameter, and gives the same values from the same generator."""
    one, other = build(), build()
    lacking = draw(one)
    assert not lacking, (
        f"init_tensor leaves {lacking[0]} without finite values; fill every parameter that build() makes"
    )
    draw(other)
    pairs = zip(one.named_parameters(), other.parameters(), strict=True)
    differ = [name for (name, first), second in pairs if not torch.equal(first, second)]
    assert not differ, f"drawn again from the same seed, {differ[0]} is another; draw from the generator that is given"


def check_meta_build(build: Callable[[], Media]) -> None:
    """Assert that on torch's meta device a module has the same parameters, and none in memory."""
    with torch.device("meta"):
        empty = build()
    real = [name for name, parameter in empty.named_parameters() if not parameter.is_meta]
    assert not real, f"on the meta device {real[0]} has memory; let build() make parameters on the default device"
    assert _shapes(empty) == _shapes(build()), "on the meta device it has other parameters"


def _shapes(module: Media) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
