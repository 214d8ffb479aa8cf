"""Decoder: grouped-query attention, gated MLP, block, and the model that holds them. What families differ in are arguments.

Modules have the names of Hugging Face's checkpoints.

Shapes: B rows, T tokens, S tokens seen (T plus the cache's), D model width, E width of all heads, N query heads,
K key/value heads, H head width, F hidden width of the MLP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Protocol, Unpack, cast

from torch import Generator, Tensor, nn

from mt_core.config.base import ModelConfig
from mt_core.config.rope import RopeScaling
from mt_core.nn.adapted import low_rank_layers
from mt_core.nn.context import AttentionOptions, BlockContext
from mt_core.nn.fused import RMSNorm, project_gated, swiglu
from mt_core.nn.low_rank_products import gated_mlp_with_low_rank, linears_with_low_rank
from mt_core.nn.model import TrainModel
from mt_core.nn.rotary import Rotary
from mt_core.nn.tiles import TokenwiseMLP

Norm = Callable[[int], nn.Module]
"""Width (channels) → a norm: ``partial(RMSNorm, eps=config.norm_eps)``."""

_INIT_STD = 0.02


class DecoderShape(Protocol):
    """Sizes that the modules here read of a config, as ``DecoderConfig`` names them."""

    @property
    def dim(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_width(self) -> int: ...


class StackShape(Protocol):
    """Sizes of what stands around the blocks, by the same names."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...


class DecoderModel(TrainModel):
    """A decoder: embedding, blocks, norm, head. A family passes the function that builds a block; ``layers`` and ``forward`` are here.

    ``build_block(index)`` is called when ``loss_factor`` is there. ``embedding``, ``norm`` and ``head`` are for families that have others
    than a plain embedding, ``RMSNorm`` and a matrix; ``tied``: the head's weight is the embedding's.
    """

    default_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    residual_outputs: tuple[str, ...] = ("o_proj.weight", "down_proj.weight")
    """Ends of the names of the matrices that add to the residual stream."""

    def __init__(
        self,
        config: StackShape,
        build_block: Callable[[int], nn.Module],
        *,
        tied: bool,
        embedding: nn.Embedding | None = None,
        norm: nn.Module | None = None,
        head: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.config = cast(ModelConfig, config)
        # A cache has the angles of its longest row, and rows of one batch have different lengths.
        scaling: RopeScaling | None = getattr(config, "rope_scaling", None)
        self.ragged_batches = scaling is None or not scaling.by_length
        self.model = _Stack(
            embedding or nn.Embedding(config.vocab_size, config.dim),
            (build_block(index) for index in range(config.n_layers)),
            norm or RMSNorm(config.dim, eps=config.norm_eps),
        )
        self.lm_head = head or nn.Linear(config.dim, config.vocab_size, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Normal with deviation 0.02; what adds to the residual stream is divided by sqrt(2 * n_layers).

        The scale of GPT-2 (https://openai.com/index/better-language-models, section 2.3), so that depth does not grow it.
        """
        if name.endswith(self.residual_outputs):
            tensor.normal_(0.0, _INIT_STD / math.sqrt(2 * len(self.model.layers)), generator=generator)
        else:
            super().init_tensor(name, tensor, generator)

    def flops_per_token(self, length: int) -> float:
        """Return 6 per weight that multiplies (2 forward, 4 backward), and as much per channel of a key and a value that is seen."""
        blocks: Iterable[Any] = self.model.layers
        return (
            sum(float(block.flops_per_token(length)) for block in blocks)
            + 6.0 * self.model.embed_tokens.embedding_dim * self.config.vocab_size
        )


class _Stack(nn.Module):
    """Holds the parts under the names that checkpoints use; ``TrainModel.layers`` says how they run."""

    def __init__(self, embedding: nn.Embedding, blocks: Iterable[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = embedding
        self.layers = nn.ModuleList(blocks)
        self.norm = norm


class NormNames(NamedTuple):
    """Names of a block's norms, before and after attention and MLP; ``None`` means no norm there."""

    before_attention: str | None = "input_layernorm"
    behind_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    behind_mlp: str | None = None


NORMS_BEFORE = NormNames()


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream, with norms before them, after them, or both."""

    def __init__(
        self,
        attention: nn.Module,
        mlp: nn.Module,
        *,
        dim: int,
        norm: Norm,
        names: NormNames = NORMS_BEFORE,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp, self.names = attention, mlp, names
        for name in filter(None, names):
            self.add_module(name, norm(dim))
        self.dropout = nn.Dropout(dropout) if dropout else None

    def forward(self, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D), in the dtype of the input."""
        names = self.names
        mixed_BTD = self.self_attn(self._before(names.before_attention, hidden_BTD), context)
        hidden_BTD = hidden_BTD + self._drop(self._behind(names.behind_attention, mixed_BTD))
        added_BTD = self.mlp(self._before(names.before_mlp, hidden_BTD), context)
        return hidden_BTD + self._drop(self._behind(names.behind_mlp, added_BTD))

    def _before(self, name: str | None, x_BTD: Tensor) -> Tensor:
        """Apply the norm, or take a view: gradients of several projections reach the residual stream as one, as behind ``RMSNorm``."""
        return x_BTD.view_as(x_BTD) if name is None else getattr(self, name)(x_BTD)

    def _behind(self, name: str | None, x_BTD: Tensor) -> Tensor:
        return x_BTD if name is None else getattr(self, name)(x_BTD)

    def _drop(self, added_BTD: Tensor) -> Tensor:
        return added_BTD if self.dropout is None else self.dropout(added_BTD)

    def flops_per_token(self, length: int) -> float:
        """Operations of one training step per token, as ``TrainModel`` counts them; attention and MLP say theirs."""
        parts: tuple[Any, ...] = (self.self_attn, self.mlp)
        return sum(float(part.flops_per_token(length)) for part in parts)


class GroupedQueryAttention(nn.Module):
    """Grouped-query attention (https://arxiv.org/abs/2305.13245).

    ``rotary`` turns queries and keys, in pairs of neighbours where they are ``interleaved``; without one the block knows no
    positions (https://arxiv.org/abs/2305.19466).
    ``bias`` is that of the projections of queries, keys and values, which ``fused`` makes one matrix, ``qkv_proj``.
    ``qk_norm`` norms queries and keys before they are turned, each head by itself or all heads of a token as one.
    ``window``, ``scale`` and ``softcap`` are those of an ``AttentionFn``.
    """

    def __init__(
        self,
        config: DecoderShape,
        index: int,
        rotary: Rotary | None,
        *,
        bias: bool = False,
        out_bias: bool = False,
        fused: bool = False,
        interleaved: bool = False,
        qk_norm: Literal["head", "all"] | None = None,
        norm: Norm = RMSNorm,
        **options: Unpack[AttentionOptions],
    ) -> None:
        super().__init__()
        self.index, self.rotary, self.width, self.fused = index, rotary, config.head_width, fused
        self.dim, self.interleaved, self.qk_norm, self.options = config.dim, interleaved, qk_norm, options
        self.heads, self.kv_heads = config.n_heads * self.width, config.n_kv_heads * self.width
        if fused:
            self.qkv_proj = nn.Linear(config.dim, self.heads + 2 * self.kv_heads, bias=bias)
        else:
            self.q_proj = nn.Linear(config.dim, self.heads, bias=bias)
            self.k_proj = nn.Linear(config.dim, self.kv_heads, bias=bias)
            self.v_proj = nn.Linear(config.dim, self.kv_heads, bias=bias)
        self.o_proj = nn.Linear(self.heads, config.dim, bias=out_bias)
        if qk_norm is not None:
            self.q_norm = norm(self.width if qk_norm == "head" else self.heads)
            self.k_norm = norm(self.width if qk_norm == "head" else self.kv_heads)

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D); a token sees its document up to itself, and what the cache holds."""
        q_BTNH, k_BSKH, v_BSKW = self._project(x_BTD)
        if self.rotary is not None:
            q_BTNH, k_BSKH = self.rotary.tables(context).turn(q_BTNH, k_BSKH, interleaved=self.interleaved)
        if context.cache is not None:
            k_BSKH, v_BSKW = context.cache.append(self.index, k_BSKH, v_BSKW)
        mixed_BTNH = context.attention(q_BTNH, k_BSKH, v_BSKW, context, **self.attention_options())
        return self.o_proj(mixed_BTNH.flatten(2))  # type: ignore[no-any-return]

    def attention_options(self) -> AttentionOptions:
        """Return the keywords of the ``AttentionFn``; a family adds those that are parameters, such as sinks."""
        return self.options

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, N, H), keys and values (B, T, K, H), normed and not yet turned."""
        if self.fused:
            q_BTE, k_BTE, v_BTE = self.qkv_proj(x_BTD).split([self.heads, self.kv_heads, self.kv_heads], -1)
        elif pairs := low_rank_layers(x_BTD, self.q_proj, self.k_proj, self.v_proj):
            q_BTE, k_BTE, v_BTE = linears_with_low_rank(x_BTD, pairs)
        else:
            q_BTE, k_BTE, v_BTE = self.q_proj(x_BTD), self.k_proj(x_BTD), self.v_proj(x_BTD)
        if self.qk_norm == "all":
            q_BTE, k_BTE = self.q_norm(q_BTE), self.k_norm(k_BTE)
        q_BTNH, k_BTKH, v_BTKH = (each_BTE.unflatten(-1, (-1, self.width)) for each_BTE in (q_BTE, k_BTE, v_BTE))
        if self.qk_norm == "head":
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        return q_BTNH, k_BTKH, v_BTKH

    def flops_per_token(self, length: int) -> float:
        """Return 6 per weight, and 12 per channel of a head and token seen: scores and sums, forward and backward."""
        weights = 2 * self.dim * (self.heads + self.kv_heads)
        return 6.0 * weights + 12.0 * self.heads * tokens_seen(length, self.options.get("window"))


def tokens_seen(length: int, window: int | None) -> float:
    """Return how many tokens a token of a row of ``length`` attends to, itself included, on average over the row."""
    reach = min(length, window or length)
    return reach - reach * (reach - 1) / (2 * length)


class GatedMLP(TokenwiseMLP):
    """A gate's activation times the up projection, projected down (https://arxiv.org/abs/2002.05202).

    ``gate(gate_BTF, up_BTF)`` is ``swiglu`` or ``geglu``. ``fused`` makes gate and up projection one matrix, ``gate_up_proj``.
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        *,
        bias: bool = False,
        fused: bool = False,
        gate: Callable[[Tensor, Tensor], Tensor] = swiglu,
    ) -> None:
        super().__init__()
        self.dim, self.ffn_dim, self.gate, self.fused = dim, ffn_dim, gate, fused
        if fused:
            self.gate_up_proj = nn.Linear(dim, 2 * ffn_dim, bias=bias)
        else:
            self.gate_proj = nn.Linear(dim, ffn_dim, bias=bias)
            self.up_proj = nn.Linear(dim, ffn_dim, bias=bias)
        self.down_proj = nn.Linear(ffn_dim, dim, bias=bias)

    def transform(self, x_BTD: Tensor) -> Tensor:
        """(…, D) -> (…, D)."""
        if self.fused:
            gate_BTF, up_BTF = self.gate_up_proj(x_BTD).chunk(2, -1)
        elif pairs := low_rank_layers(x_BTD, self.gate_proj, self.up_proj, self.down_proj):
            return gated_mlp_with_low_rank(x_BTD, pairs, self.gate)
        else:
            gate_BTF, up_BTF = self.gate_proj(x_BTD), self.up_proj(x_BTD)
        return project_gated(self.down_proj, gate_BTF, up_BTF, self.gate)

    def flops_per_token(self, length: int) -> float:
        """Return 6 per weight."""
        return 18.0 * self.dim * self.ffn_dim
