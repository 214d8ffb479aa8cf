"""Mixtures of experts of transformers by mt_core's: the same parameters and activations, in both of its forms.

Routers stay the model's own, without the noise that they add in training, since no other layout would draw the same. What they chose is
reported, and balanced where the config asks for it.

Shapes: N tokens, K experts of a token, X experts, D model width, F hidden width of an expert, S rows sorted by expert.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter
from transformers.integrations.moe import _default_apply_gate
from transformers.utils.output_capturing import OutputRecorder

from mt_core import ExpertLayout, whole_shape
from mt_core.nn import (
    Choice,
    Experts,
    ListedExperts,
    LossFactor,
    StoredLinear,
    balance_loss,
    report_choice,
    swiglu,
    with_loss,
)

from .attention import current_context
from .frame import mix_in
from .linear import count_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MARKS = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "has_post_expert_norm")
"""Attributes that ``use_experts_implementation`` of transformers gives a module of experts."""


def use_experts(model: PreTrainedModel) -> None:
    """Run what transformers marks as experts by mt_core's, and routers without noise."""
    found: dict[Any, tuple[str, ...]] = {}
    for module in model.modules():
        if are_experts(module):
            has_gate = module.has_gate
            if has_gate not in found:
                found[has_gate] = projections_of(model, has_gate=bool(has_gate))
            _become_experts(module, found[has_gate])
        elif module._parameters and any(isinstance(each, nn.Identity) for each in module.children()):
            _hide_parts(module)
            mix_in(module, _WithoutComputation)
        elif any("jitter" in name for name in vars(module)):
            mix_in(module, _WithoutNoise)


def are_experts(module: nn.Module) -> bool:
    """Return whether these are experts that run here: an up and a down projection, a gate or none, and no norm behind."""
    marks = {name: getattr(module, name, None) for name in _MARKS}
    return marks["has_gate"] is not None and marks["has_post_expert_norm"] is False


def _become_experts(module: Any, projections: tuple[str, ...]) -> None:
    n_experts, *sizes = whole_shape(module.down_proj)
    hidden, width = sizes if module.is_transposed else reversed(sizes)
    layout = ExpertLayout(
        n_experts=n_experts,
        width=width,
        hidden=hidden,
        interleaved=module.has_gate and not module.is_concatenated,
        transposed=module.is_transposed,
        bias=module.has_bias,
        projections=projections,
    )
    theirs = copy.copy(module)
    theirs.__dict__["_parameters"] = {}  # a listed form outlives the fused tensors
    mix_in(module, TheirExperts, theirs=theirs)
    module.layout, module.activation = layout, activation_of(theirs)


def projections_of(model: PreTrainedModel, *, has_gate: bool) -> tuple[str, ...]:
    """Return the names of an expert's gate, where it has one, up and down projection in published files."""
    named = {}
    for each in get_model_conversion_mapping(model, add_legacy=False):
        if isinstance(each, WeightConverter) and "experts" in each.target_patterns[0]:
            own = each.target_patterns[0].rpartition(".")[2]
            named[own] = [source.removesuffix(".weight").rpartition(".")[2] for source in each.source_patterns]
    inner = named.get("gate_up_proj", ["gate_proj", "up_proj"]) if has_gate else named.get("up_proj", ["up_proj"])
    return (*inner, *named.get("down_proj", ["down_proj"]))


def activation_of(experts: Any) -> Callable[..., Tensor]:
    """(gate, up) -> hidden values, all (S, F), as the module computes them; without a gate (up) -> them."""
    if not experts.has_gate:
        function: Callable[..., Tensor] = experts.act_fn
        return function
    if type(experts)._apply_gate is _default_apply_gate:
        return swiglu if isinstance(experts.act_fn, nn.SiLU) or _is_silu(experts.act_fn) else _Gated(experts.act_fn)
    return _OwnGate(experts)


def _is_silu(function: Any) -> bool:
    return type(function).__name__ == "SiLUActivation"


class _Gated:
    """An activation of the gate, times what is gated."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, gate_SF: Tensor, up_SF: Tensor) -> Tensor:
        return self.function(gate_SF) * up_SF


class _OwnGate:
    """A type's own gating, which takes both halves as they stand in its fused tensor."""

    def __init__(self, experts: Any) -> None:
        self.experts = experts

    def __call__(self, gate_SF: Tensor, up_SF: Tensor) -> Tensor:
        both = torch.cat((gate_SF, up_SF), -1)
        if not self.experts.is_concatenated:
            both = torch.stack((gate_SF, up_SF), -1).flatten(-2)
        out: Tensor = self.experts._apply_gate(both)
        return out


class TheirExperts(Experts):
    """Experts as transformers calls them."""

    def forward(self, x_ND: Tensor, experts_NK: Tensor, weights_NK: Tensor) -> Tensor:  # type: ignore[override]
        """(N, D), (N, K), (N, K) -> (N, D)."""
        return super().forward(x_ND, Choice(experts_NK, weights_NK, weights_NK))

    def make_listed(self) -> ListedExperts:
        """See ``Experts``."""
        listed = TheirListedExperts(self.layout, self.activation)
        listed.__dict__["_theirs"] = self.__dict__["_theirs"]
        return listed


class TheirListedExperts(ListedExperts):
    """Listed experts as transformers calls them."""

    def forward(self, x_ND: Tensor, experts_NK: Tensor, weights_NK: Tensor) -> Tensor:  # type: ignore[override]
        """(N, D), (N, K), (N, K) -> (N, D)."""
        return super().forward(x_ND, Choice(experts_NK, weights_NK, weights_NK))


def module_to_draw(model: nn.Module, name: str, tensor: Tensor) -> nn.Module | None:
    """Return the type's own module of experts with one value alone, to be drawn by transformers' rule, where the name of a parameter is
    that of an expert in the listed form; ``None`` for any other."""
    path, module = name.split("."), model
    for place, part in enumerate(path[:-2]):
        found = module._modules.get(part)
        if found is None:
            return None
        module = found
        if isinstance(module, TheirExperts | TheirListedExperts):
            return _with_value(module, path[place + 1 :], tensor)
    return None


def _with_value(experts: nn.Module, name: Sequence[str], tensor: Tensor) -> nn.Module:
    """Return a copy of the type's own module; ``name`` is the number of an expert, its projection, and what is drawn of that."""
    layout: ExpertLayout = experts.layout  # type: ignore[assignment]
    _, projection, kind = name
    fused = "down_proj" if projection == layout.projections[-1] else layout.inner
    own = f"{fused}_bias" if kind == "bias" else fused
    value = tensor.mT if layout.transposed and kind == "weight" else tensor
    shapes = layout.fused_shapes()
    module = copy.copy(experts.__dict__["_theirs"])
    module.__dict__["_parameters"] = {
        key: nn.Parameter(value[None] if key == own else torch.empty(shape, device="meta"), requires_grad=False)
        for key, shape in shapes.items()
    }
    out: nn.Module = module
    return out


def _hide_parts(module: nn.Module) -> None:
    """Let modules without parameters be attributes alone. Each expert that has tokens calls them; ZeRO 3 follows the order of calls, and
    ranks whose experts have none would gather parameters in another order."""
    for name, part in list(module.named_children()):
        if not [*part.parameters(), *part.buffers()]:
            del module._modules[name]
            module.__dict__[name] = part


class _WithoutComputation:
    """Experts of which some give their input back: where all of a rank's tokens choose those, the others have a gradient of zero, and
    not none, for which other ranks would wait."""

    def forward(self, *args: Any, **named: Any) -> Any:
        out = super().forward(*args, **named)  # type: ignore[misc]
        own: Any = self
        if torch.is_grad_enabled():
            for parameter in own._parameters.values():
                if parameter is not None and parameter.requires_grad:
                    out = _WithZeroGradient.apply(out, parameter)  # type: ignore[no-untyped-call]
        return out


class _WithZeroGradient(torch.autograd.Function):
    """Returns its first input; the second has a gradient of zero from it."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, parameter: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = parameter.shape, parameter.dtype
        return out.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad.new_zeros((), dtype=ctx.dtype).expand(ctx.shape)


class _WithoutNoise:
    """Runs a module that adds noise in training as in evaluation."""

    def forward(self, *args: Any, **named: Any) -> Any:
        self.training = False
        return super().forward(*args, **named)  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------------------- routers


def routers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return by name the modules that give logits of experts, weights and choice, in this order: those of which transformers records the
    logits."""
    recorders = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits")
    if not isinstance(recorders, OutputRecorder) or recorders.index != 0:
        return {}
    return {name: each for name, each in model.named_modules() if isinstance(each, recorders.target_class)}


def linear_routers(model: nn.Module) -> tuple[str, ...]:
    """Return the names of linear layers that are routers or belong to one."""
    beside = {id(part) for router in routers_of(model).values() for part in router.modules()}
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | StoredLinear) and (id(module) in beside or "router" in name.split("."))
    )


def projections_in(model: nn.Module, blocks: str, routers: Collection[str]) -> tuple[str, ...]:
    """Return the last names of the linear layers of blocks, those of experts among them, and not those of routers (``linear_routers``), nor
    gates of a single number."""
    beside = {id(model.get_submodule(name)) for name in routers}
    found: list[str] = []
    for name, module in model.get_submodule(blocks).named_modules():
        if isinstance(module, Experts):
            found += module.layout.projections
        elif isinstance(module, nn.Linear | StoredLinear) and module.out_features > 1 and id(module) not in beside:
            found.append(name.rpartition(".")[2])
    return tuple(dict.fromkeys(found))


def idle_weights(model: nn.Module) -> float:
    """Return how many weights of experts a token is not multiplied by; none where routers do not say how many experts they choose."""
    chosen = {getattr(each, "top_k", None) for each in routers_of(model).values()}
    top_k = chosen.pop() if len(chosen) == 1 else None
    if not isinstance(top_k, int):
        return 0.0
    mixtures = (each for each in model.modules() if isinstance(each, Experts | ListedExperts))
    return sum(count_weights(experts) * (1 - top_k / experts.layout.n_experts) for experts in mixtures)


def watch_routers(model: nn.Module, *, balance: float, factor: LossFactor) -> None:
    """Report what routers choose, and balance it by ``balance_loss`` with this coefficient."""
    for name, router in routers_of(model).items():
        mix_in(router, _Router, name=name, balance=balance, factor=factor)


class _Router:
    """A router whose choice is known to the block's context."""

    def forward(self, *args: Any, **named: Any) -> Any:
        logits_NX, weights_NK, experts_NK = super().forward(*args, **named)  # type: ignore[misc]
        context, balance = current_context(), self.__dict__["_balance"]
        choice = Choice(experts_NK, weights_NK, logits_NX.float().softmax(-1))
        if context.collects():
            report_choice(choice, context, f"experts.{self.__dict__['_name']}")
        if balance and torch.is_grad_enabled():
            # transformers counts each of a token's choices as one, balance_loss all of them together
            loss = balance * experts_NK.shape[-1] * balance_loss(choice, context)
            weights_NK = with_loss(weights_NK, loss, self.__dict__["_factor"])
        return logits_NX, weights_NK, experts_NK
