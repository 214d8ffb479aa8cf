"""A linear layer with something trained beside its weight: what LoRA and its variants replace a projection by.

Shapes: E inputs, F outputs, R rank, with any dimensions before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mt_core.errors import UsageError
from mt_core.nn.fused import has_hooks
from mt_core.nn.low_rank_products import LowRank


class StoredLinear(nn.Module):
    """A linear layer that stores its weight transposed or quantized, unlike ``nn.Linear``.

    ``forward`` takes (…, E) to (…, F).
    """

    merges: ClassVar[bool] = True
    """Whether another weight can be put without a loss that nobody asked for."""
    is_transposed: bool = False
    """Whether files, and a parameter ``weight`` where there is one, have the weight as (E, F)."""
    in_features: int
    out_features: int
    bias: Tensor | None
    original: Callable[[], Tensor] | None = None
    """Reads the weight again as it was before it was stored; there until the adapter has begun."""

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of a weight that is no parameter."""
        return sum(each.numel() * each.element_size() for each in self.buffers(recurse=False))

    def dense_weight(self) -> Tensor:
        """The weight as it multiplies, (F, E), in fp32: a copy."""
        raise NotImplementedError

    def put_dense_weight(self, weight_FE: Tensor) -> None:
        """Store a weight of any floating-point dtype."""
        raise NotImplementedError


class AdaptedLinear(nn.Module):
    """Replaces a linear layer and has its parameters, under their own names.

    A variant declares its parameters in ``__init__`` (``new_parameter``, ``shared_parameter``: shapes only), gives them values in
    ``initialise``, and writes ``adapted_output``. What can be merged also has ``delta_weight``, or ``merged_weight`` where a sum
    does not say it.
    """

    weight: Tensor
    bias: Tensor | None
    trained: ClassVar[tuple[str, ...] | None] = None
    """Names of the own parameters that are trained; ``None`` is all of them."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.__dict__["_base"] = base  # not a child: the names of the weights stay those of the model
        self.in_features, self.out_features = int(base.in_features), int(base.out_features)  # type: ignore[arg-type]
        for name, parameter in base._parameters.items():
            self.register_parameter(name, parameter)
        self._plain = isinstance(base, nn.Linear)
        self._of_base = frozenset(self._parameters)
        self._kept: dict[str, Tensor] = {}
        self.shows_base = False  # mt_core.adapters.viewing

    # ------------------------------------------------------------------------------------------- for a variant to write

    def initialise(self, generator: Generator) -> None:
        """Give the own parameters their first values; all weights of the layer are whole here. A variant that declares
        ``rewrites_base`` may also change the base (``put_base_weight``). Shared parameters have their values before."""
        raise NotImplementedError

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F), the base's output included."""
        raise NotImplementedError(f"{type(self).__name__} defines no adapted_output(x), its forward pass")

    def delta_weight(self) -> Tensor:
        """Return the addition to the base's weight, (F, E), in fp32. Raises ``UsageError`` where it is no sum of weights."""
        raise UsageError(
            f"{type(self).__name__} does more than a weight can: it cannot be merged. Generate with the adapter as it is"
        )

    def low_rank(self, dtype: torch.dtype) -> LowRank | None:
        """Return the layer as a pair beside its base where it is no more than that for inputs of this dtype."""
        return None

    def merged_weight(self) -> Tensor:
        """One weight that does what base and adapter do, (F, E), in fp32."""
        return self.base_weight() + self.delta_weight()

    def merged_bias(self) -> Tensor | None:
        """The bias that goes with it."""
        return self.bias

    # -------------------------------------------------------------------------------------------- for a variant to use

    def new_parameter(self, *shape: int) -> nn.Parameter:
        """A parameter without values, in the base's dtype where that has a floating-point one."""
        return nn.Parameter(torch.empty(shape, dtype=self._dtype()))

    def shared_parameter(self, store: SharedParameters, key: str, shape: Sequence[int], fill: Fill) -> nn.Parameter:
        """A parameter that every layer with this key has: one tensor, which they train together.

        ``store`` is that of the ``LinearAdapter`` (``LinearAdapter.store``), so that each model has its own; ``shape`` is the same in all
        layers, and may be larger than what one of them uses; ``fill`` gives it its first values, once (see ``Fill``).
        """
        return store.get(key, tuple(shape), fill, self._dtype())

    def base_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F): what the layer gave before there was an adapter."""
        if self._plain:
            return functional.linear(x, self.weight, self.bias)
        return self._other(x)  # type: ignore[no-any-return]

    def base_weight(self) -> Tensor:
        """The base's weight, (F, E), in fp32: a copy."""
        if self._plain:
            return self.weight.detach().to(torch.float32, copy=True)
        return self._other.dense_weight()

    def original_weight(self) -> Tensor:
        """Return ``base_weight`` as it was before it was stored in fewer bits, (F, E), in fp32; for ``initialise``."""
        if self._plain or self._other.original is None:
            return self.base_weight()
        here = next(chain(self._other.parameters(), self._other.buffers())).device
        return self._other.original().to(here, torch.float32)

    @torch.no_grad()
    def put_base_weight(self, weight_FE: Tensor) -> None:
        """Rewrite the base's weight, rounded to its dtype."""
        if self._plain:
            self.weight.copy_(weight_FE)
        else:
            self._other.put_dense_weight(weight_FE)

    @property
    def can_merge(self) -> bool:
        """Return whether the base has room for a merged weight."""
        return self._plain or self._other.merges

    @property
    def is_plain(self) -> bool:
        """Return whether the base is an ``nn.Linear``, whose ``weight`` is (F, E)."""
        return self._plain

    @property
    def is_transposed(self) -> bool:
        """Return whether files, and ``weight`` where it is a parameter, have the weight as (E, F)."""
        return not self._plain and self._other.is_transposed

    @property
    def is_merged(self) -> bool:
        """Return whether the base alone runs, with the merged weight in it."""
        return bool(self._kept)

    def own_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that the adapter has brought, shared ones too."""
        return (
            (name, each) for name, each in self._parameters.items() if name not in self._of_base and each is not None
        )

    # -------------------------------------------------------------------------------------------- for whoever runs it

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F), in the dtype of the input."""
        return self.base_output(x) if self._kept or self.shows_base else self.adapted_output(x)

    @torch.no_grad()
    def merge(self) -> None:
        """Put the merged weight into the base, which alone runs from then on; what it was is kept beside it."""
        if self._kept:
            raise UsageError("the layer is merged already; unmerge(model) first")
        if not self.can_merge:
            raise UsageError(
                f"{type(self._other).__name__} stores its weight in fewer bits, and a merged one would be rounded to them; merge into"
                " the weights that it was made from (mt-export --merge), or generate with the adapter as it is"
            )
        kept = {
            name: each.detach().clone() for name, each in self.named_parameters(recurse=False) if name in self._of_base
        }
        bias = self.merged_bias()
        self.put_base_weight(self.merged_weight())
        if bias is not None:
            assert self.bias is not None, "a merged bias needs a place in the base"
            self.bias.copy_(bias)
        self._kept = kept

    @torch.no_grad()
    def unmerge(self) -> None:
        """The base as it was, to the bit."""
        if not self._kept:
            raise UsageError("the layer is not merged; merge(model) first")
        own = dict(self.named_parameters(recurse=False))
        for name, value in self._kept.items():
            own[name].copy_(value)
        self._kept = {}

    @property
    def base(self) -> nn.Module:
        """The layer that this one stands for."""
        return self.__dict__["_base"]  # type: ignore[no-any-return]

    @property
    def _other(self) -> StoredLinear:
        """The base, where it is no ``nn.Linear``."""
        return self.__dict__["_base"]  # type: ignore[no-any-return]

    def _dtype(self) -> torch.dtype:
        found = next((p.dtype for p in self._parameters.values() if p is not None and p.is_floating_point()), None)
        return found or torch.get_default_dtype()


def low_rank_layers(x: Tensor, *layers: nn.Module) -> list[LowRank] | None:
    """Return all layers as pairs beside their bases, for functions of several layers; ``None`` where one of them is more, where hooks
    have to run (ZeRO 3's gather weights), and in a compiled model, whose compiler sees the parts."""
    found = None if torch.compiler.is_compiling() else [_low_rank(layer, x.dtype) for layer in layers]
    return None if found is None or None in found else found  # type: ignore[return-value]


def _low_rank(layer: nn.Module, dtype: torch.dtype) -> LowRank | None:
    return layer.low_rank(dtype) if isinstance(layer, AdaptedLinear) and not has_hooks(layer) else None


Fill = Callable[[Tensor, Generator], None]
"""``fill(tensor, generator)`` writes the first values of a shared parameter into ``tensor`` in place, in the tensor's own dtype.

It is called once for each key, before ``initialise`` of any layer that has it, and draws on the CPU in fp32 from ``generator``, which
(seed, key) decides: every layout then begins with the same values. It has to be a function of these two alone, since each rank calls it."""


class Shared(NamedTuple):
    """A parameter that several layers have: its key, and how it gets its first values."""

    key: str
    fill: Fill


class SharedParameters:
    """Parameters that several layers of a model share, by key; each is initialised once, from (seed, key)."""

    def __init__(self) -> None:
        self._found: dict[str, nn.Parameter] = {}

    def get(self, key: str, shape: tuple[int, ...], fill: Fill, dtype: torch.dtype) -> nn.Parameter:
        """The parameter of this key, made when it is asked for first."""
        if key not in self._found:
            self._found[key] = nn.Parameter(torch.empty(shape, dtype=dtype))
            self._found[key].shared = Shared(key, fill)  # type: ignore[attr-defined]
        parameter = self._found[key]
        assert tuple(parameter.shape) == shape, f"{key} is {tuple(parameter.shape)}, and a layer asks for {shape}"
        return parameter


def sharing_of(parameter: nn.Parameter) -> Shared | None:
    """Return how several layers share this parameter; ``None`` for a parameter of a single layer."""
    return getattr(parameter, "shared", None)


class LossFactor:
    """Factor of the gradient of a sum over tokens in the current step; the engine sets it."""

    def __init__(self) -> None:
        self.value = 1.0


def with_loss(x: Tensor, loss_sum: Tensor, factor: LossFactor) -> Tensor:
    """Return ``x`` unchanged, and add ``loss_sum`` (a scalar, summed over this micro-batch's tokens) to the loss.

    Its gradient enters here, so that a term of a layer needs no way to the last pipeline stage. Reported losses are without it.
    """
    return _WithLoss.apply(x, loss_sum, factor)  # type: ignore[no-untyped-call, no-any-return]


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss_sum: Tensor, factor: LossFactor) -> Tensor:
        ctx.factor, ctx.of_loss = factor, loss_sum.new_ones(loss_sum.shape)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, ctx.of_loss * ctx.factor.value, None
