"""A trainable model as an ordered list of layers: embed, blocks, final norm, head.

Data parallel, ZeRO, pipeline, sequence parallel, adapters, activation checkpointing and generation all use this list.

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from mt_core.config.base import ModelConfig
from mt_core.errors import UsageError
from mt_core.groups import matching_pattern, whole_shape
from mt_core.nn.adapted import LossFactor
from mt_core.nn.attention import SdpaAttention
from mt_core.nn.batch import Batch
from mt_core.nn.cache import KVCache
from mt_core.nn.context import AttentionFn, BlockContext, BlockRunner
from mt_core.nn.media import add_levels, draw_default
from mt_core.nn.step import StepSums
from mt_core.step_context import AdapterContext


class Layer(NamedTuple):
    """A layer and the prefix of its parameters in the whole model's ``state_dict``."""

    prefix: str
    module: nn.Module


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """How to build a layer on the pipeline stage that owns it. ``cost`` is relative; equal ``tie_key`` share a weight."""

    prefix: str
    build: Callable[[], nn.Module]
    cost: float
    tie_key: str | None = None


class TrainModel(nn.Module):
    """A decoder-only model. A family builds its modules in ``__init__``; ``layers`` lists them."""

    config: ModelConfig
    default_targets: tuple[str, ...] = ()
    routers: tuple[str, ...] = ()
    """Names of linear layers that choose experts: neither adapters nor quantizers take them, whatever their targets."""
    ragged_batches: bool = True
    """Whether generation may pad short prompts on the left (``KVCache.padding_B``). False where a row would then not be
    what it is alone: a state that runs through the padding, or positions that depend on the longest row."""
    kept: tuple[str, ...] = ()
    """Patterns (* and ?) of the names of parameters that are read, saved and moved as all others, and that nothing trains: no adapter,
    ``full`` included, and no ``train.enable``. They stay in fp32 in a run of any precision, so that ``after_step`` may count in them;
    a block that multiplies by one rounds it (``.to(x.dtype)``)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention: AttentionFn = SdpaAttention()
        self.checkpoint_blocks = False
        self.recompute: BlockRunner | None = None
        self.loss_factor = LossFactor()
        self.sums = StepSums()
        self.media: nn.ModuleDict | None = None

    def layers(self) -> Sequence[Layer]:
        """Embed, blocks, final norm, head, in order.

        They are called ``embed(input_ids_BT)``, ``block(hidden_BTD, context)``, ``norm(hidden_BTD)`` and
        ``head(hidden_ND)``; the head is pure per token. A model that has other names than Hugging Face's decoders, as in
        ``model.layers.0``, gives its own.
        """
        blocks = self.get_submodule("model.layers")
        assert isinstance(blocks, nn.ModuleList), f"{type(self).__name__}.model.layers is no ModuleList; write layers()"
        return [
            Layer("model.embed_tokens", self.get_submodule("model.embed_tokens")),
            *(Layer(f"model.layers.{index}", block) for index, block in enumerate(blocks)),
            Layer("model.norm", self.get_submodule("model.norm")),
            Layer("lm_head", self.get_submodule("lm_head")),
        ]

    @property
    def head(self) -> nn.Module:
        """The last layer: hidden states to logits."""
        return self.layers()[-1].module

    def embed_batch(self, batch: Batch, context: BlockContext) -> Tensor:
        """(B, T) ids -> (B, T, D): what goes into the first block, with media in their places; their levels go into the context.

        ``media``, which a run with encoders puts into the model, returns both. Every encoder is called exactly once; a batch without media
        has a dummy of each in training, and none is called outside of it.
        """
        hidden_BTD: Tensor = self.layers()[0].module(batch.input_ids)
        if self.media is not None:
            hidden_BTD, levels = self.media(hidden_BTD, batch.media)
            context.levels.extend(levels)
        return hidden_BTD

    def context_of(self, batch: Batch, cache: KVCache | None = None) -> BlockContext:
        """Return the context of all blocks in a forward of this batch."""
        return BlockContext(
            positions_BT=batch.positions,
            document_ids_BT=batch.document_ids,
            attention=self.attention,
            cache=cache,
            document_lengths=batch.document_lengths,
            labels_BT=batch.labels,
            lengths_BT=batch.lengths,
            sums=self.sums,
            grid_positions_BT3=batch.grid_positions,
            recompute=self.recompute,
        )

    def forward(self, batch: Batch, cache: KVCache | None = None) -> Tensor:
        """(B, T) ids -> (B, T, D), the hidden states that the head takes."""
        _, *blocks, norm, _ = [layer.module for layer in self.layers()]
        context = self.context_of(batch, cache)
        hidden_BTD = self.embed_batch(batch, context)
        recompute = self.checkpoint_blocks and self.training and torch.is_grad_enabled()
        if recompute and not hidden_BTD.requires_grad:  # a frozen embedding under an adapter
            hidden_BTD.requires_grad_(True)
        for index, block in enumerate(blocks):
            hidden_BTD = run_recomputed(block, hidden_BTD, context) if recompute else block(hidden_BTD, context)
            hidden_BTD = add_levels(hidden_BTD, index, context.levels)
        if cache is not None:
            cache.length += batch.input_ids.shape[1]
        return norm(hidden_BTD)  # type: ignore[no-any-return]

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Fill one parameter in place; the core calls it for every parameter, by full name, on the CPU in fp32.

        The default: vectors named ``*.weight`` are 1, other vectors 0, matrices normal with standard deviation 0.02.
        """
        draw_default(name, tensor, generator)

    @property
    def steps(self) -> bool:
        """Return whether ``after_step`` has anything to do; a model that only some configs let act says so."""
        return type(self).after_step is not TrainModel.after_step

    def after_step(self, context: AdapterContext) -> None:
        """Act after an update that was applied, on all ranks of a layout, each of which has the modules of its pipeline stage.

        ``context.step_sum`` has what blocks gathered in the step, ``context.write`` changes a ``kept`` parameter. Every rank must
        write the same. Checkpoints hold the values of ``kept`` parameters from after this call.
        """

    def kept_names(self) -> list[str]:
        """Return the names of the parameters that ``kept`` fits."""
        return [name for name, _ in self.named_parameters() if matching_pattern(name, self.kept)]

    def refuse_kept(self, key: str, pattern: str, names: Collection[str]) -> None:
        """Raise ``UsageError`` where the parameters that a pattern of this option asks to change (``names``) are all ``kept``."""
        if names and set(self.kept_names()).issuperset(names):
            raise UsageError(
                f"{key}: {pattern!r} names {next(iter(names))}, which {type(self).__name__} keeps as it is: it is read and saved, and"
                f" nothing trains it (kept: {', '.join(self.kept)}). Leave the pattern out"
            )

    def flops_per_token(self, length: int) -> float:
        """Floating-point operations of one training step per token, at rows of ``length`` tokens.

        The default counts 6 per weight that multiplies (2 forward, 4 backward), the embedding look-up and attention apart.
        """
        weights = sum(
            math.prod(whole_shape(parameter)) for layer in self.layers()[1:] for parameter in layer.module.parameters()
        )
        return 6.0 * weights


def run_recomputed(block: nn.Module, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
    """Run a block, (B, T, D) -> (B, T, D), with activation checkpointing: only its input is kept, and the backward runs it again."""
    if context.recompute is not None:
        return context.recompute(block, hidden_BTD, context)
    sums = context.sums or StepSums()
    return checkpoint(block, hidden_BTD, context, use_reentrant=False, context_fn=sums.around_recompute)  # type: ignore[no-any-return]


def tensor_generator(seed: int, name: str) -> Generator:
    """Return the random generator of one tensor, so that every layout draws the same values."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
