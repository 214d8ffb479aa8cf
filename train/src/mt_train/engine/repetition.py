"""The micro-batches of a step, computed again before its update: on the same weights, rows and random numbers the same bits follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mt_core.nn import Batch
from mt_train.engine.stateful import StatefulEngine
from mt_train.engine.step import Trained, weighted_loss
from mt_train.engine.transfer import Transfer


def make_repetition(
    engine: StatefulEngine, module: Trained, transfer: Transfer, window: Sequence[Batch], scales: Sequence[float]
) -> Callable[[], None]:
    """Return a function that runs these micro-batches forward and backward as they will now be run. Collective where they are.

    Gradients come to hooks of the parameters (``Tensor.register_hook``) and go no further: neither ``grad`` nor what the engine has added
    up changes, and random generators are where they were. Each is freed as soon as the hooks have seen it, since at ZeRO 2 and 3 there may
    be no room for all of them.
    """
    device = engine.process.device
    devices = [device] if device.type == "cuda" else []
    numbers, numbers_of_device = torch.get_rng_state(), [torch.cuda.get_rng_state(each) for each in devices]

    def repeat() -> None:
        loss_scale = engine.zero_optimizer.loss_scaler.cur_scale if engine.plan.scales_loss else 1.0
        trained = [each for each in module.parameters() if each.requires_grad]
        with torch.random.fork_rng(devices), _free_gradients(trained):
            torch.set_rng_state(numbers)
            for state in numbers_of_device:
                torch.cuda.set_rng_state(state, device)
            for batch in transfer.copy_ahead(window):
                outputs = module(batch)  # type: ignore[operator] # not DeepSpeed's forward, which would answer this backward
                torch.autograd.grad(weighted_loss(outputs, scales).float() * loss_scale, trained, allow_unused=True)

    return repeat


@contextmanager
def _free_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Let one zero stand for each gradient behind all other hooks, so that nothing keeps the gradient inside."""
    hooks = [each.register_hook(_zero_in_place_of) for each in parameters]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _zero_in_place_of(gradient: Tensor) -> Tensor:
    """Return one zero in the shape of the gradient, without its memory."""
    return gradient.new_zeros(()).expand_as(gradient)
