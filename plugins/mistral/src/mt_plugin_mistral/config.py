"""The shape of a Mistral as a typed config. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from mt_core import WindowedDecoderConfig


class MistralConfig(WindowedDecoderConfig):
    """A decoder's sizes. Mistral has its window on all blocks (https://arxiv.org/abs/2310.06825) or none, Ministral by a pattern."""

    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
