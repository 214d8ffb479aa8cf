"""Rotary positions whose wavelengths hang on how long a text is (``dynamic``, ``longrope``), by the length of each token's document.

transformers takes the longest row of a batch, so that a row would be another one beside others, and on other ranks. Here a document has
the wavelengths that it has there alone. In generation the length is that of the text so far, as there: keys that are cached keep theirs.

Shapes: B rows, T tokens, F frequencies, H rotated channels of a head.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mt_core import UsageError
from mt_core.nn import BlockContext

from .attention import current_context
from .config import BY_LENGTH


def use_document_lengths(model: nn.Module) -> None:
    """Let all rotary positions of a model that hang on lengths take those of documents. Raises ``UsageError`` where one is not known."""
    for module in model.modules():
        if getattr(module, "rope_type", None) in BY_LENGTH:
            _check_tables(module)
            module.__class__ = type(type(module).__name__, (_ByDocument, type(module)), {})


class _ByDocument(nn.Module):
    """Rotary positions of transformers, of which each token has its own wavelengths."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) positions -> (B, T, H) cosines and sines, in the dtype of ``x``."""
        frequencies_BTF = _frequencies(self, _lengths(current_context()), position_ids.device)
        return _tables(self, position_ids, frequencies_BTF, x.dtype)


def _lengths(context: BlockContext) -> Tensor:
    """(B, T), or () for all: tokens of the text that each token belongs to."""
    if context.cache is not None:
        return torch.tensor(context.cache.length + context.positions_BT.shape[1])
    return context.positions_BT.max() + 1 if context.lengths_BT is None else context.lengths_BT


def _frequencies(module: Any, lengths: Tensor, device: torch.device) -> Tensor:
    """(B, T) -> (B, T, F), or () -> (F,)."""
    make, config = ROPE_INIT_FUNCTIONS[module.rope_type], module.config
    lengths = lengths.to(device)[..., None]
    if module.rope_type == "dynamic":
        found: Tensor = make(config, device, seq_len=lengths)[0]
        return found
    original = config.rope_parameters["original_max_position_embeddings"]
    short_F, long_F = (make(config, device, seq_len=length)[0] for length in (original, original + 1))
    return torch.where(lengths > original, long_F, short_F)


def _tables(module: Any, positions_BT: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles_BTF = positions_BT[..., None].float() * frequencies.float()
    angles_BTH = torch.cat([angles_BTF, angles_BTF], -1)
    cos_BTH, sin_BTH = angles_BTH.cos(), angles_BTH.sin()
    scale = module.attention_scaling
    return (cos_BTH * scale).to(dtype), (sin_BTH * scale).to(dtype)


@torch.no_grad()
def _check_tables(module: nn.Module) -> None:
    """Raises ``UsageError`` unless the module's own tables, for a text that is not longer than the original, are those here."""
    frequencies_F = cast(Tensor, module.inv_freq)
    if frequencies_F.is_meta:
        return
    positions = torch.arange(4, device=frequencies_F.device)[None]
    theirs = module(frequencies_F.new_zeros(1, 1), positions)
    ours = _tables(module, positions, frequencies_F, frequencies_F.dtype)
    if not all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)):
        raise UsageError(
            f"{type(module).__name__} lays positions out as nobody has tried with rotary scaling {module.rope_type!r}"
        )
