"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ANY, hookimpl
from mt_core.media import EncoderComponent

from .hyenadna.config import HyenaDNAConfig
from .hyenadna.folder import HYENADNA
from .sequences import SequenceProcessor

if TYPE_CHECKING:
    from mt_core.nn import Encoder


@hookimpl
def mt_encoders() -> list[EncoderComponent]:
    return [
        EncoderComponent(
            name="hyenadna",
            config=HyenaDNAConfig,
            build=_hyenadna,
            reads=frozenset({"dna"}),
            width=lambda config: config.shape.dim,
            processor=lambda config: SequenceProcessor("dna", config.vocabulary, config),
            formats=(HYENADNA,),
            summary="HyenaDNA: up to a million letters, causal long convolutions",
            source="https://arxiv.org/abs/2306.15794",
            layouts=ANY,
        ),
    ]


def _hyenadna(config: HyenaDNAConfig) -> Encoder:
    from .hyenadna.encoder import HyenaDNA  # torch loads here, when a run has chosen it

    return HyenaDNA(config)
