"""Kin of GRPO by the names of their papers: the options of ``grpo`` with other defaults, each of which can be set as ever."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, create_model

from .grpo_config import GrpoConfig


def _preset(name: str, **defaults: Any) -> type[GrpoConfig]:
    """Return the options of ``grpo`` with other defaults: a subclass, with the same bounds and descriptions."""
    fields: dict[str, Any] = {}
    for key, value in defaults.items():
        field = GrpoConfig.model_fields[key]
        annotation: Any = field.annotation
        for bound in field.metadata:
            annotation = Annotated[annotation, bound]
        fields[key] = (annotation, Field(value, description=field.description))
    made: type[GrpoConfig] = create_model(name, __base__=GrpoConfig, __module__=__name__, **fields)
    return made


DrGrpoConfig = _preset("DrGrpoConfig", scale="none", mean="constant")
"""Dr. GRPO (https://arxiv.org/abs/2503.20783): no division by deviations and lengths."""

DapoConfig = _preset("DapoConfig", clip_high=0.28, updates=4, resample=2)
"""DAPO (https://arxiv.org/abs/2503.14476): higher upper bound, mean over tokens, prompts without spread answered again."""

RlooConfig = _preset(
    "RlooConfig", group=4, baseline="others", scale="none", mean="answer", loss="whole", kl=0.05, kl_in="reward"
)
"""RLOO (https://arxiv.org/abs/2402.14740): an answer is one action, and the others its baseline; β is TRL's."""

ReinforcePlusPlusConfig = _preset(
    "ReinforcePlusPlusConfig", group=1, baseline="none", scale="tokens", kl=0.01, kl_in="returns"
)
"""REINFORCE++ (https://arxiv.org/abs/2501.03262): one answer to a prompt, whitened over all tokens; β is OpenRLHF's."""

GspoConfig = _preset("GspoConfig", loss="sequence", mean="answer", clip_low=3e-4, clip_high=4e-4, updates=4)
"""GSPO (https://arxiv.org/abs/2507.18071): the ratio of an answer instead of a token's; bounds and updates are the paper's."""

CispoConfig = _preset("CispoConfig", loss="cispo", clip_low=1.0, clip_high=4.0, updates=4)
"""CISPO (https://arxiv.org/abs/2506.13585): no lower bound, and the upper one of https://arxiv.org/abs/2510.13786."""

SapoConfig = _preset("SapoConfig", loss="soft", mean="answer", updates=4)
"""SAPO (https://arxiv.org/abs/2511.20347): a soft gate instead of bounds; temperatures are the paper's."""

RemaxConfig = _preset("RemaxConfig", group=1, baseline="greedy", scale="none", kl_in="returns")
"""ReMax (https://arxiv.org/abs/2310.10505): one answer to a prompt, against the greedy one."""

GdpoConfig = _preset("GdpoConfig", normalise="each")
"""GDPO (https://arxiv.org/abs/2601.05242): each reward is compared by itself."""
