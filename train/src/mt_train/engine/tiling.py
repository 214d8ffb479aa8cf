"""Tiles of tokens for the MLPs of a model's blocks (``train.mlp_tile_tokens``)."""

from __future__ import annotations

from mt_core.errors import UsageError
from mt_core.nn import TokenwiseMLP, TrainModel


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
            module.tile_tokens = tokens
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


def describe_whole(whole: list[str], blocks: int) -> str:
    """Describe for people which blocks are not tiled."""
    return (
        f"train.mlp_tile_tokens: the MLPs of {len(whole)} of {blocks} blocks ({whole[0]} …) stay whole, since their tokens"
        " choose experts"
    )


def _mlp_of(block: object) -> str:
    return type(getattr(block, "mlp", block)).__name__
