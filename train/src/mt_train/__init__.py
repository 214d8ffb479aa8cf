"""Training: from a config and what plugins offer to a trained model. Importing it imports no torch.

Public are the names here and ``mt_train.command``; the rest is private and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Backend": "mt_train.generation.backend",
    "CollectsAnswers": "mt_train.data.online",
    "LoadedModel": "mt_train.generation.loaded_model",
    "Outcome": "mt_train.assemble.outcome",
    "Policy": "mt_train.data.online",
    "Prompt": "mt_train.data.online",
    "Record": "mt_train.data.online",
    "RunConfig": "mt_train.config.run",
    "SeveralAdapters": "mt_train.adapters.several",
    "check_config": "mt_train.api",
    "describe_failure": "mt_train.tracking.failures",
    "load_adapters": "mt_train.api",
    "load_config": "mt_train.api",
    "load_over_base": "mt_train.api",
    "load_run": "mt_train.api",
    "load_weights": "mt_train.api",
    "train": "mt_train.api",
}

__all__ = [
    "Backend",
    "CollectsAnswers",
    "LoadedModel",
    "Outcome",
    "Policy",
    "Prompt",
    "Record",
    "RunConfig",
    "SeveralAdapters",
    "check_config",
    "describe_failure",
    "load_adapters",
    "load_config",
    "load_over_base",
    "load_run",
    "load_weights",
    "train",
]

if TYPE_CHECKING:
    from mt_train.adapters.several import SeveralAdapters
    from mt_train.api import check_config, load_adapters, load_config, load_over_base, load_run, load_weights, train
    from mt_train.assemble.outcome import Outcome
    from mt_train.config.run import RunConfig
    from mt_train.data.online import CollectsAnswers, Policy, Prompt, Record
    from mt_train.generation.backend import Backend
    from mt_train.generation.loaded_model import LoadedModel
    from mt_train.tracking.failures import describe_failure


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mt_train' has no public name {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
