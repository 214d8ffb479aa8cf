"""Tiles of tokens for the MLPs of a model's blocks (``train.mlp_tile_tokens``): no tensor of an MLP's hidden width has more rows than
a tile (https://arxiv.org/abs/2506.13996, section 3.1).

Shapes: B rows, T tokens, N = B · T, n tokens of a tile, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mt_core.errors import UsageError
from mt_core.nn import TokenwiseMLP, TrainModel, exclude_from_compile


def tile_mlps(model: TrainModel, tokens: int) -> list[str]:
    """Let the MLPs of the blocks compute so many tokens at a time, and return the blocks that have none, whose MLP stays whole.

    At ZeRO 3 such an MLP is gathered as one, where its forward and its backward begin, and its layers are not. Raises ``UsageError``
    where no block has one.
    """
    blocks = model.layers()[1:-2]
    whole = []
    for prefix, block in blocks:
        found = [module for module in block.modules() if isinstance(module, TokenwiseMLP)]
        for module in found:
            run_mlp_in_tiles(module, tokens)
            module._z3_leaf = True  # type: ignore[assignment]  # deepspeed.utils.set_z3_leaf_module, without its import
        if not found:
            whole.append(prefix)
    if len(whole) == len(blocks):
        raise UsageError(
            f"train.mlp_tile_tokens={tokens}: no block of {type(model).__name__} has an MLP that computes each token by itself"
            f" (mt_core.nn.TokenwiseMLP); {whole[0]} has {_mlp_of(blocks[0].module)}. Leave the key out; for memory set"
            " train.activation_checkpointing, and for experts parallel.expert"
        )
    return whole


def run_mlp_in_tiles(mlp: TokenwiseMLP, tokens: int) -> None:
    """Let an MLP compute so many tokens at a time."""
    mlp.tile_tokens, mlp.run_in_tiles = tokens, _run_tiles


def describe_whole(whole: list[str], blocks: int) -> str:
    """Describe for people which blocks are not tiled."""
    return (
        f"train.mlp_tile_tokens: the MLPs of {len(whole)} of {blocks} blocks ({whole[0]} …) stay whole, since their tokens"
        " choose experts"
    )


def _mlp_of(block: object) -> str:
    return type(getattr(block, "mlp", block)).__name__


def _run_tiles(mlp: TokenwiseMLP, x_BTD: Tensor) -> Tensor:
    """Call ``run_in_tiles`` by its name, under which it may be disabled for the compiler by now."""
    assert mlp.tile_tokens is not None, "the number of tokens is set with the function"
    return run_in_tiles(mlp.transform, x_BTD, mlp.tile_tokens, [p for p in mlp.parameters() if p.requires_grad])


@exclude_from_compile
def run_in_tiles(
    transform: Callable[[Tensor], Tensor], x_BTD: Tensor, tokens: int, weights: list[nn.Parameter]
) -> Tensor:
    """Return ``transform(x_BTD)`` computed from so many tokens at a time; ``weights`` are the trained parameters that it reads.

    It keeps its input alone, through a function of its own: a recomputed block then ends where the input is there again, and does not
    run the tiles once more for an output that nobody needs.
    """
    if torch.is_grad_enabled() and x_BTD.requires_grad:
        x_BTD = _Input.apply(x_BTD)  # type: ignore[no-untyped-call]
    return _Tiles.apply(transform, tokens, x_BTD.grad_fn, x_BTD, *weights)  # type: ignore[no-untyped-call, no-any-return]


class _Input(torch.autograd.Function):
    """Keeps a tensor for whoever has this node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, transform: Callable[[Tensor], Tensor], tokens: int, source: Any, x_BTD: Tensor, *weights: Tensor
    ) -> Tensor:
        ctx.transform, ctx.tokens, ctx.source, ctx.weights = transform, tokens, source, weights
        if source is None:
            ctx.save_for_backward(x_BTD)
        ctx.device, ctx.state = x_BTD.device, random_state(x_BTD.device)
        tiles = (transform(x_nD) for x_nD in torch.split(x_BTD.flatten(0, -2), tokens))
        return _join(tiles, x_BTD)

    @staticmethod
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor | None, ...]:
        (x_BTD,) = (ctx if ctx.source is None else ctx.source).saved_tensors
        wanted = [weight for weight, wants in zip(ctx.weights, ctx.needs_input_grad[4:], strict=True) if wants]
        sums: list[Tensor | None] = [None] * len(wanted)
        wants_x = ctx.needs_input_grad[3]

        def run() -> Iterator[Tensor]:
            rows = zip(*(torch.split(each.flatten(0, -2), ctx.tokens) for each in (x_BTD, grad_BTD)), strict=True)
            for x_nD, grad_nD in rows:
                leaf_nD = x_nD.detach().requires_grad_(wants_x)
                with torch.enable_grad():
                    out_nD = ctx.transform(leaf_nD)
                inputs = [*([leaf_nD] if wants_x else []), *wanted]
                found = list(torch.autograd.grad(out_nD, inputs, grad_nD, allow_unused=True))
                del out_nD
                yield found.pop(0) if wants_x else x_nD
                _add(sums, found)

        with _random_state_of(ctx.state, ctx.device):
            grad_x_BTD = _join(run(), x_BTD) if wants_x else None
            if not wants_x:
                for _ in run():
                    pass
        given = (None if each is None else each.to(weight.dtype) for each, weight in zip(sums, wanted, strict=True))
        return None, None, None, grad_x_BTD, *(next(given) if wants else None for wants in ctx.needs_input_grad[4:])


def _join(tiles: Iterator[Tensor], like_BTD: Tensor) -> Tensor:
    """Write tiles one after the other into one tensor."""
    out_ND, begin = None, 0
    for tile_nD in tiles:
        if out_ND is None:
            out_ND = tile_nD.new_empty(like_BTD.shape[:-1].numel(), tile_nD.shape[-1])
        out_ND[begin : begin + len(tile_nD)] = tile_nD
        begin += len(tile_nD)
    assert out_ND is not None, "an MLP gets at least one token"
    return out_ND.view(*like_BTD.shape[:-1], -1)


def _add(sums: list[Tensor | None], found: Sequence[Tensor | None]) -> None:
    """Add a tile's gradients of weights up in place, in fp32: each sum is rounded once, as that of one large product is."""
    for index, value in enumerate(found):
        if value is not None:
            before, wide = sums[index], torch.promote_types(value.dtype, torch.float32)
            sums[index] = value.to(wide, copy=True) if before is None else before.add_(value)


def random_state(device: torch.device) -> tuple[Tensor, ...]:
    """Return the state of the generators that a function on this device may draw from."""
    return torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


@contextmanager
def _random_state_of(state: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Draw inside what was drawn after ``state``."""
    with torch.random.fork_rng([device] if len(state) > 1 else []):
        torch.set_rng_state(state[0])
        if len(state) > 1:
            torch.cuda.set_rng_state(state[1], device)
        yield
