"""A trainable model as an ordered list of layers: embed, blocks, final norm, head.

Data parallel, ZeRO, pipeline, sequence parallel, adapters, activation checkpointing and generation all use this list.

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from mt_core.config.base import ModelConfig
from mt_core.groups import whole_shape
from mt_core.nn.adapted import LossFactor
from mt_core.nn.attention import AttentionFn, SdpaAttention
from mt_core.nn.batch import Batch, DocumentLengths


class Layer(NamedTuple):
    """A layer and the prefix of its parameters in the whole model's ``state_dict``."""

    prefix: str
    module: nn.Module


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """How to build one layer on the pipeline stage that owns it. ``cost`` is relative; equal ``tie_key`` share a weight."""

    prefix: str
    build: Callable[[], nn.Module]
    cost: float
    tie_key: str | None = None


class KVCache:
    """What each block keeps between calls in generation: keys and values, or any state of its own.

    ``length`` is the number of tokens seen so far; the model advances it after its last block. ``padding_B`` says how
    many of them, at the start of each row, are padding that no real token may see; ``None`` means none in any row.
    """

    def __init__(self, padding_B: Tensor | None = None) -> None:
        self.length = 0
        self.padding_B = padding_B
        self._state: dict[int, Any] = {}

    def get(self, layer: int) -> Any:
        """The state that this layer stored last, or ``None``."""
        return self._state.get(layer)

    def put(self, layer: int, state: Any) -> None:
        """Store the state of one layer."""
        self._state[layer] = state

    def append(self, layer: int, k_BTKH: Tensor, v_BTKH: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of T new tokens; returns those of all tokens so far."""
        past = self.get(layer)
        if past is not None:
            k_BTKH, v_BTKH = torch.cat([past[0], k_BTKH], 1), torch.cat([past[1], v_BTKH], 1)
        self.put(layer, (k_BTKH, v_BTKH))
        return k_BTKH, v_BTKH

    def select(self, rows_R: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times. Every tensor of a state has its rows first."""
        self._state = {layer: _rows(state, rows_R) for layer, state in self._state.items()}
        if self.padding_B is not None:
            self.padding_B = self.padding_B.index_select(0, rows_R)


def _rows(state: Any, rows_R: Tensor) -> Any:
    if isinstance(state, Tensor):
        return state.index_select(0, rows_R)
    if isinstance(state, dict):
        return {key: _rows(value, rows_R) for key, value in state.items()}
    return type(state)(_rows(value, rows_R) for value in state) if isinstance(state, tuple | list) else state


@dataclass(frozen=True)
class BlockContext:
    """What every block may see beside the hidden states. It is made from the batch alone, as every pipeline stage does.

    ``shared`` lets the first block compute something for all (rotary tables); it belongs to one forward of one stage, so
    a block computes what it does not find there. ``labels_BT`` (-100 where nothing is trained) is for what counts tokens: how much
    padding there is hangs on how rows are divided. ``lengths_BT`` are the tokens of each token's document, without padding.
    """

    positions_BT: Tensor
    document_ids_BT: Tensor
    attention: AttentionFn
    cache: KVCache | None = None
    document_lengths: DocumentLengths | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    labels_BT: Tensor | None = None
    lengths_BT: Tensor | None = None

    def over_row(self, value: Tensor) -> Tensor:
        """A sum over the tokens of each row that are here, over all of them: ranks may share rows. It has no gradient."""
        added = getattr(self.attention, "over_row", None)
        return value.detach() if added is None else added(value.detach())


class TrainModel(nn.Module):
    """A decoder-only model. A family builds its modules in ``__init__`` and lists them in ``layers``."""

    config: ModelConfig
    default_targets: tuple[str, ...] = ()
    ragged_batches: bool = True
    """Whether generation may pad short prompts on the left (``KVCache.padding_B``). False where a row would then not be
    what it is alone: a state that runs through the padding, or positions that depend on the longest row."""

    def __init__(self) -> None:
        super().__init__()
        self.attention: AttentionFn = SdpaAttention()
        self.checkpoint_blocks = False
        self.loss_factor = LossFactor()

    def layers(self) -> Sequence[Layer]:
        """Embed, blocks, final norm, head, in order.

        They are called ``embed(input_ids_BT)``, ``block(hidden_BTD, context)``, ``norm(hidden_BTD)`` and
        ``head(hidden_ND)``; the head is pure per token.
        """
        raise NotImplementedError

    @property
    def head(self) -> nn.Module:
        """The last layer: hidden states to logits."""
        return self.layers()[-1].module

    def forward(self, batch: Batch, cache: KVCache | None = None) -> Tensor:
        """(B, T) ids -> (B, T, D), the hidden states that the head takes."""
        embed, *blocks, norm, _ = [layer.module for layer in self.layers()]
        context = BlockContext(
            positions_BT=batch.positions,
            document_ids_BT=batch.document_ids,
            attention=self.attention,
            cache=cache,
            document_lengths=batch.document_lengths,
            labels_BT=batch.labels,
            lengths_BT=batch.lengths,
        )
        hidden_BTD: Tensor = embed(batch.input_ids)
        recompute = self.checkpoint_blocks and self.training and torch.is_grad_enabled()
        if recompute and not hidden_BTD.requires_grad:  # a frozen embedding under an adapter
            hidden_BTD.requires_grad_(True)
        for block in blocks:
            hidden_BTD = (
                checkpoint(block, hidden_BTD, context, use_reentrant=False) if recompute else block(hidden_BTD, context)
            )
        if cache is not None:
            cache.length += batch.input_ids.shape[1]
        return norm(hidden_BTD)  # type: ignore[no-any-return]

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Fill one parameter in place; the core calls it for every parameter, by full name, on the CPU in fp32.

        The default: vectors named ``*.weight`` are 1, other vectors 0, matrices normal with standard deviation 0.02.
        """
        if tensor.dim() >= 2:
            tensor.normal_(0.0, 0.02, generator=generator)
        else:
            tensor.fill_(1.0 if name.endswith("weight") else 0.0)

    def flops_per_token(self, length: int) -> float:
        """Floating-point operations of one training step per token, at rows of ``length`` tokens.

        The default counts 6 per weight that multiplies (2 forward, 4 backward), the embedding look-up and attention apart.
        """
        weights = sum(
            math.prod(whole_shape(parameter)) for layer in self.layers()[1:] for parameter in layer.module.parameters()
        )
        return 6.0 * weights


def tensor_generator(seed: int, name: str) -> Generator:
    """The generator of one tensor, so that every layout draws the same values."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
