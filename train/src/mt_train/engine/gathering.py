"""Gathering of modules by DeepSpeed's ZeRO 3: which gather their parameters, and which it remembers.

The private attributes that this takes are those of 0.19 (``DeepSpeedZeRoOffload``).
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from mt_core.nn import objective_modules
from mt_train.engine.step import LossHead


def gather_around_loss(deepspeed: ModuleType, loss_head: LossHead, zero_optimizer: Any) -> None:
    """Gather all parameters of the head where the forward and the backward of ``loss_head`` begin, and never inside.

    DeepSpeed gathers the parameters of a module at each call, which all ranks must make equally often. The head runs once
    for each chunk of the tokens that are trained on this rank, and again in the backward: ranks with other numbers of them
    would meet in collectives of different parameters. What runs inside is then free to call the head as it needs. Parameters that
    are not trained because the objective has a head of its own stay where they are, and are gathered for a reader alone: without
    that DeepSpeed would count them as the loss's once they are read, against the order of modules that it has recorded.
    """
    used = objective_modules(loss_head.head) if loss_head.own_head else loss_head.head
    assert used is not None, "an objective with its own head has modules"
    for parameter in used.parameters():
        deepspeed.zero.register_external_parameter(loss_head, parameter)
    known = {id(parameter) for parameter in used.parameters()}
    unused = [parameter for parameter in loss_head.head.parameters() if id(parameter) not in known]
    if unused:
        loss_head.gather_unused = partial(deepspeed.zero.GatheredParameters, unused)
    modules = list(loss_head.head.modules())
    own = {id(hooks) for module in modules for hooks in (module._forward_pre_hooks, module._forward_hooks)}
    offload = zero_optimizer.parameter_offload
    for handle in (*offload.forward_hooks, *offload.backward_hooks):
        if id(handle.hooks_dict_ref()) in own:
            handle.remove()


def forget_modules() -> None:
    """DeepSpeed's ZeRO 3 remembers the last module, and in a cache of a class what to release after each, for good."""
    from deepspeed.runtime.zero import parameter_offload, partitioned_param_coordinator

    parameter_offload.FWD_MODULE_STACK.clear()
    coordinator = partitioned_param_coordinator.PartitionedParameterCoordinator
    for cell in coordinator._PartitionedParameterCoordinator__params_to_release.__closure__:  # a wrapper that times it
        getattr(cell.cell_contents, "cache_clear", lambda: None)()
