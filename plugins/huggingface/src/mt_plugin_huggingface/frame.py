"""The outside of a transformers model: what its own forward does before, between and after its blocks.

A frame is a copy of the outer modules, not of their parameters, in which the blocks are stand-ins that write down how they are
called. Running it on embedded tokens gives what reaches the first block and what each block is called with (rotary tables,
positions, kinds of layers), all by the model's own code. No name of a type occurs here: paths come from ``ModelType``.

Shapes: B rows, T tokens, N single tokens, D model width, V tokens of the vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from mt_core import UsageError
from mt_core.nn import BlockContext

from .attention import use_context
from .cache import cache_for
from .types import ModelType


@dataclass(frozen=True)
class Call:
    """How the model's forward calls one block."""

    hidden_BTD: Tensor
    args: tuple[Any, ...]
    named: dict[str, Any]

    def for_token(self, place: int) -> Call:
        """Return how the block would be called on the token at this place alone."""
        size = self.hidden_BTD.shape[1]

        def cut(value: Any) -> Any:
            has_tokens = isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == size
            return value[:, place : place + 1] if has_tokens else value

        named = {name: cut(value) for name, value in self.named.items()}
        return Call(cut(self.hidden_BTD), tuple(map(cut, self.args)), named)


class StandIn(nn.Module):
    """Looks like a module of the model, and returns its input. ``calls`` gets how it was called.

    Where the module returns a tuple of ``tuple_size``, so does it: its input, and nothing else in it.
    """

    def __init__(self, real: nn.Module, calls: list[Call] | None = None, tuple_size: int = 0) -> None:
        super().__init__()
        self.__dict__ |= {"real": real, "calls": calls, "tuple_size": tuple_size}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    def forward(self, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
        calls: list[Call] | None = self.__dict__["calls"]
        if calls is not None:
            calls.append(Call(hidden_states, args, named))
        tuple_size: int = self.__dict__["tuple_size"]
        return (hidden_states, *[None] * (tuple_size - 1)) if tuple_size else hidden_states


class FinalNorm(nn.Module):
    """Stands for the norm behind the blocks, and returns its input; before the blocks it is that norm, which some models have there too."""

    def __init__(self, real: nn.Module, calls: list[Call], n_blocks: int) -> None:
        super().__init__()
        self.__dict__ |= {"real": real, "calls": calls, "n_blocks": n_blocks}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    def forward(self, hidden_states: Tensor) -> Tensor:
        is_behind = len(self.__dict__["calls"]) == self.__dict__["n_blocks"]
        out: Tensor = hidden_states if is_behind else self.__dict__["real"](hidden_states)
        return out


class OwnForward(nn.Module):
    """Runs a module that became a layer by the ``forward`` of its own class, without that and the hooks of the layer.

    Where another pipeline stage has its parameters, it gives zero, or the hidden states that it was given.
    """

    def __init__(self, real: nn.Module) -> None:
        super().__init__()
        self.__dict__["real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    def forward(self, *args: Any, **named: Any) -> Tensor:
        real = self.__dict__["real"]
        if next(real.parameters()).is_meta:
            hidden = [each for each in args if isinstance(each, Tensor) and each.is_floating_point() and each.dim() > 2]
            return hidden[0] if hidden else torch.zeros(())
        own: Any = type(real).__bases__[-1]  # before it became a layer
        out: Tensor = own.forward(real, *args, **named)
        return out


class Frame:
    """The outside of one model."""

    def __init__(self, model: nn.Module, kind: ModelType) -> None:
        self._calls: list[Call] = []
        blocks = model.get_submodule(kind.blocks)
        assert isinstance(blocks, nn.ModuleList), f"{kind.name}: {kind.blocks} is no list of blocks"
        instead: dict[str, nn.Module] = {
            kind.blocks: nn.ModuleList(StandIn(block, self._calls, kind.tuple_size) for block in blocks),
            kind.norm: FinalNorm(model.get_submodule(kind.norm), self._calls, len(blocks)),
        }
        if kind.positions is not None:
            instead[kind.positions] = OwnForward(model.get_submodule(kind.positions))
        self._embedded = FixedOutput(model.get_submodule(kind.embed))
        if kind.scales_ids:
            instead[kind.embed] = self._embedded
        decoder, _, _ = kind.blocks.partition(".")
        self._outside = _copy_with(model, instead).get_submodule(decoder)
        accepted = inspect.signature(type(self._outside).forward).parameters
        self._kind, self._takes_positions = kind, "position_ids" in accepted
        self._cache = next((name for name in ("past_key_values", "cache_params") if name in accepted), "")
        self._asked = accepted[self._cache].annotation if self._cache else None
        self._decoder_output = FixedOutput(model.get_submodule(decoder))
        head = OwnForward(model.get_submodule(kind.head))
        self._language_model = _copy_with(model, {decoder: self._decoder_output, kind.head: head})

    def run(self, hidden_BTD: Tensor, context: BlockContext) -> list[Call]:
        """Run the decoder's forward on embedded tokens, and return how it calls each block.

        Raises ``UsageError`` for a model that is no list of layers.
        """
        named: dict[str, Any] = {"use_cache": context.cache is not None}
        if context.cache is not None:
            named[self._cache] = cache_for(self._asked, context.cache, contiguous=self._kind.own_attention)
        if self._takes_positions:
            named["position_ids"] = context.positions_BT
        self._calls.clear()
        if self._kind.scales_ids:
            named["input_ids"] = torch.zeros_like(context.positions_BT)
        else:
            named["inputs_embeds"] = hidden_BTD.clone() if self._kind.scales_in_place else hidden_BTD
        with self._embedded.returning(hidden_BTD), use_context(context):
            self._outside(**named)
        calls = list(self._calls)
        self._calls.clear()
        if any(call.hidden_BTD is not calls[0].hidden_BTD for call in calls):
            raise UsageError(
                "this model does something to the hidden states between its blocks; it is no list of layers"
            )
        return calls

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) -> (N, V): all that the language model does to hidden states, caps and scales of logits included."""
        with self._decoder_output.returning(_Output(last_hidden_state=hidden_ND[None])):
            logits: Tensor = self._language_model(inputs_embeds=hidden_ND[None], use_cache=False).logits
        return logits[0]


class FixedOutput(nn.Module):
    """Stands for a module, such as the decoder in front of a head, and returns the output that ``returning`` sets."""

    def __init__(self, real: nn.Module) -> None:
        super().__init__()
        self.__dict__ |= {"real": real, "output": None}

    @contextmanager
    def returning(self, output: Any) -> Iterator[None]:
        """Return this output whenever the module is called meanwhile."""
        self.__dict__["output"] = output
        try:
            yield
        finally:
            self.__dict__["output"] = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["real"], name)
        has_blocks = isinstance(found, nn.Module) and any(isinstance(each, nn.ModuleList) for each in found.modules())
        return self if has_blocks else found  # some language models call a part of their decoder

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.__dict__["output"]


class _Output(BaseModelOutputWithPast):  # type: ignore[misc]
    """Output of a decoder; ``None`` for everything that language models copy from it."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


def mix_in(module: nn.Module, layer: type, **known: Any) -> None:
    """Put a class before a module's own, so that its ``forward`` runs first; ``known`` become attributes with an underscore."""
    module.__dict__ |= {f"_{key}": value for key, value in known.items()}
    module.__class__ = type(type(module).__name__, (layer, type(module)), {})


def _copy_with(model: nn.Module, instead: dict[str, nn.Module]) -> nn.Module:
    """A copy of the modules on the way to each path, with another module there; all others, and all parameters, are the model's."""
    out = copy.copy(model)
    out.__dict__["_modules"] = dict(model._modules)
    deeper: dict[str, dict[str, nn.Module]] = {}
    for path, module in instead.items():
        name, _, rest = path.partition(".")
        if rest:
            deeper.setdefault(name, {})[rest] = module
        else:
            out._modules[name] = module
    for name, part in deeper.items():
        out._modules[name] = _copy_with(getattr(model, name), part)
    return out
