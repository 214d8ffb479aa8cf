"""Text from a trained model.

To be read in this order: ``mt_core.generation`` (what can be asked), ``history`` and ``sampling`` (logits to a token), ``choices``,
``text`` (tokens to text), ``request`` (what a decoder is asked for, and a row on its way), ``products`` and ``forward`` (where the model
runs), ``intake`` (prompts into a cache), ``row_sampling``, ``decoder`` (rows join, step and leave), ``prompt_scores``, ``beams``,
``continuation`` (prompts to texts). What commands add is in ``mt_tools.generation``.

The names here are public, for commands of plugins that decode. Importing it imports no torch; taking a name does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Continuer": "mt_train.generation.continuation",
    "Decoder": "mt_train.generation.decoder",
    "GrowingText": "mt_train.generation.text",
    "PromptIds": "mt_train.generation.request",
    "PromptScores": "mt_train.generation.prompt_scores",
    "Request": "mt_train.generation.request",
    "TokenOutput": "mt_train.generation.request",
    "TokenScore": "mt_train.generation.request",
    "split_prompt": "mt_train.generation.request",
}

__all__ = [
    "Continuer",
    "Decoder",
    "GrowingText",
    "PromptIds",
    "PromptScores",
    "Request",
    "TokenOutput",
    "TokenScore",
    "split_prompt",
]

if TYPE_CHECKING:
    from mt_train.generation.continuation import Continuer
    from mt_train.generation.decoder import Decoder
    from mt_train.generation.prompt_scores import PromptScores
    from mt_train.generation.request import PromptIds, Request, TokenOutput, TokenScore, split_prompt
    from mt_train.generation.text import GrowingText


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_train.generation' has no public name {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
