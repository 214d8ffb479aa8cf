"""A causal language model of transformers as mt_core's list of layers, by the model's own code.

Its modules and parameters keep their names. Blocks become layers by one more base class, whose ``forward`` takes a ``BlockContext``
and calls the block as the model's own forward would; ``frame`` finds out how that is.

Shapes: B rows, T tokens, N single tokens, D model width, V tokens of the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, cast

import torch
from torch import Generator, Tensor, nn

from mt_core.nn import BlockContext, Layer, TrainModel

from .attention import Rule, use_context
from .build import build_language_model, mask_rules, true_buffers
from .cache import lend_states, states_of
from .config import BY_LENGTH, HuggingFaceConfig, limits_of, rope_types
from .experts import idle_weights, linear_routers, module_to_draw, projections_in, watch_routers
from .frame import Call, Frame, mix_in
from .fused import use_fused
from .initial import InitialValues
from .linear import count_weights, use_projections, use_transposed_linear
from .rotary import use_document_lengths

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""The number of a block or an expert in the name of a parameter."""

_SHARED = "mt_plugin_huggingface"
"""Key of ``BlockContext.shared``: how each block of this forward is called."""


class HuggingFaceModel(TrainModel):
    """Embed, learned positions where there are some, blocks, norm, head."""

    config: HuggingFaceConfig

    def __init__(self, config: HuggingFaceConfig) -> None:
        super().__init__()
        self.config = config
        model, kind = build_language_model(config), config.kind
        use_document_lengths(model)
        use_fused(model)
        self.ragged_batches = "packing" not in limits_of(config) and not rope_types(config.config) & {*BY_LENGTH}
        self.__dict__["_modules"] = model._modules  # one set: what is put into the one is in the other
        outside = Outside(config, model)
        self.__dict__ |= {"_outside": outside, "_initial": InitialValues(config)}
        for number, block in enumerate(cast(nn.ModuleList, self.get_submodule(kind.blocks))):
            mix_in(block, _Block, outside=outside, number=number)
        if kind.positions is not None:
            mix_in(self.get_submodule(kind.positions), _Positions, outside=outside)
        mix_in(self.get_submodule(kind.norm), _Norm, outside=outside)
        if not kind.plain_head:
            mix_in(self.get_submodule(kind.head), _Head, outside=outside)
        use_transposed_linear(self.get_submodule(kind.blocks))
        use_projections(self.get_submodule(kind.blocks), kind.read_weights)
        watch_routers(model, balance=config.balance_loss, factor=self.loss_factor)
        self.kept = tuple(
            dict.fromkeys(_NUMBER.sub("*", name) for name, each in self.named_parameters() if not each.requires_grad)
        )
        self.routers = linear_routers(model)
        self.default_targets = projections_in(model, kind.blocks, self.routers)

    def layers(self) -> Sequence[Layer]:
        """See ``TrainModel``; learned positions are a block of their own, since a layer before it would not know the positions.

        Where a module stands between norm and head, it is what is called norm elsewhere, and the norm is the last block.
        """
        kind = self.config.kind
        blocks = cast(nn.ModuleList, self.get_submodule(kind.blocks))
        paths = [kind.embed, *([kind.positions] if kind.positions else [])]
        paths += [*(f"{kind.blocks}.{number}" for number in range(len(blocks))), kind.norm]
        paths += [*([kind.before_head] if kind.before_head else []), kind.head]
        return [Layer(path, self.get_submodule(path)) for path in paths]

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Draw a parameter by transformers' rules, from ``generator`` alone."""
        self.__dict__["_initial"].draw(name, tensor, generator, module_to_draw(self, name, tensor))

    def flops_per_token(self, length: int) -> float:
        """See ``TrainModel``; of experts those that a token chooses count, and weights that a quantizer has stored do."""
        weights = sum(count_weights(layer.module) for layer in self.layers()[1:])
        return 6.0 * (weights - idle_weights(self.__dict__["_outside"].model))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.__dict__["_outside"].forget_buffers()  # a cast has rounded them
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]


class Outside:
    """State that the layers of a model share: the model as transformers knows it, its frame, and buffers with their true values.

    The frame is made at the first forward, when adapters are in the model and its parameters are where they stay.
    """

    def __init__(self, config: HuggingFaceConfig, model: nn.Module) -> None:
        self.config, self.model = config, model
        self._frame: Frame | None = None
        self._true: dict[str, Tensor] | None = None
        self._restored: torch.device | None = None
        self._rules: list[Rule] | None = None

    def rule(self, number: int) -> Rule | None:
        """Return the rule by which the model masks the attention of a block; ``None`` where attention is the model's own."""
        if self.config.kind.own_attention:
            return None
        if self._rules is None:
            self._rules = mask_rules(self.config)
        return self._rules[number]

    def head_dtype(self) -> torch.dtype:
        """Return the dtype of the head's weights, wherever these are."""
        return next(self.model.get_submodule(self.config.kind.head).parameters()).dtype

    def forget_buffers(self) -> None:
        """Let the true values be put back before the next forward."""
        self._restored = None

    def frame(self, device: torch.device) -> Frame:
        """The frame, with true buffers on this device."""
        if self._restored != device:
            self._restore_buffers(device)
        if self._frame is None:
            self._frame = Frame(self.model, self.config.kind)
        return self._frame

    def calls(self, context: BlockContext, hidden_BTD: Tensor) -> list[Call]:
        """Return how each block of this forward is called. It does not hang on hidden states, and where no earlier layer has found out
        (on a later pipeline stage) these are zeros."""
        if _SHARED not in context.shared:
            with torch.no_grad():
                context.shared[_SHARED] = self.frame(hidden_BTD.device).run(torch.zeros_like(hidden_BTD), context)
        return cast(list[Call], context.shared[_SHARED])

    def begin(self, context: BlockContext, hidden_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D): what the model does to embedded tokens before its first block."""
        calls = context.shared[_SHARED] = self.frame(hidden_BTD.device).run(hidden_BTD, context)
        return calls[0].hidden_BTD.to(hidden_BTD.dtype)  # tables of positions are fp32

    @torch.inference_mode(False)  # the first forward may be one that only evaluates, and a later one trains
    @torch.no_grad()
    def _restore_buffers(self, device: torch.device) -> None:
        if self._true is None:
            self._true = true_buffers(self.config)
        for name, value in self._true.items():
            path, _, own = name.rpartition(".")
            self.model.get_submodule(path)._buffers[own] = value.to(device, copy=True)
        self._restored = device


class _Block:
    """A block of transformers as a layer."""

    def forward(self, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        outside, number = self.__dict__["_outside"], self.__dict__["_number"]
        if number == 0 and outside.config.kind.positions is None:
            hidden_BTD = outside.begin(context, hidden_BTD)
        call, kind = outside.calls(context, hidden_BTD)[number], outside.config.kind
        call = replace(call, hidden_BTD=hidden_BTD)
        calls = [call]
        if kind.by_token and context.cache is not None and states_of(context.cache, number):
            calls = [call.for_token(place) for place in range(hidden_BTD.shape[1])]
        outs = []
        with use_context(context, outside.rule(number)):
            for each in calls:
                with lend_states(self, kind.module_states, context.cache, number):
                    outs.append(super().forward(each.hidden_BTD, *each.args, **each.named))  # type: ignore[misc]
        hidden = [out[0] if kind.tuple_size else out for out in outs]
        return hidden[0] if len(hidden) == 1 else torch.cat(hidden, 1)


class _Positions:
    """Learned positions as a layer: what the model does before its first block."""

    def forward(self, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        hidden: Tensor = self.__dict__["_outside"].begin(context, hidden_BTD)
        return hidden


class _Norm:
    """The norm behind the blocks, in the dtype of the head: some types add blocks up in fp32. It may be called as a block is."""

    def forward(self, hidden_BTD: Tensor, context: BlockContext | None = None) -> Tensor:
        hidden: Tensor = super().forward(hidden_BTD)  # type: ignore[misc]
        return hidden.to(self.__dict__["_outside"].head_dtype())


class _Head:
    """A head that does more than multiply by its matrix."""

    def forward(self, hidden_ND: Tensor) -> Tensor:
        logits: Tensor = self.__dict__["_outside"].frame(hidden_ND.device).logits(hidden_ND)
        return logits
