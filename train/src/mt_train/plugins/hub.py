"""Weights by name: ``org/name`` or ``org/name@revision`` of the Hugging Face Hub, from its cache or downloaded.

The token comes from the environment (``HF_TOKEN``) only: neither a config nor a login that somebody left on the machine
gives one. Only safetensors, JSON, tokenizers and templates are fetched: nothing that could execute.
"""

from __future__ import annotations

import os
import re
from os.path import expanduser
from pathlib import Path

from mt_core.errors import WeightsError, first_line, show_value

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
_FETCHED = ["*.safetensors", "*.json", "*.model", "*.jinja", "*.txt"]
_LEFT_OUT = ["original/*", "onnx/*", "*.onnx*", "training_args*"]


def locate(weights: str, key: str = "model.weights") -> Path:
    """Return the file or folder that ``key`` means. Raises ``WeightsError`` when it is nowhere to be had."""
    path = Path(expanduser(weights))
    try:
        if path.exists() or not _NAME.fullmatch(weights):
            return path
    except OSError as error:  # a name longer than the file system's
        raise WeightsError(f"{key} is {show_value(weights)}, which is no path: {error.strerror}; check it") from error
    return _snapshot(weights)


def folder_of(weights: Path) -> Path:
    """Return the folder of weights, which may be a file in it: config and tokenizer are there, too."""
    return weights if weights.is_dir() else weights.parent


def is_there(path: Path) -> bool:
    """Return whether a path leads anywhere; what can be no path does not."""
    try:
        return path.exists()
    except (OSError, ValueError):  # longer than paths are, or with a NUL
        return False


def is_name(weights: str) -> bool:
    """Return whether this may be the name of a repository on the Hub."""
    return _NAME.fullmatch(weights) is not None


def locate_existing(weights: str, fix: str) -> Path:
    """Return what ``locate`` finds. Raises ``WeightsError`` where nothing is there, with what to give instead."""
    path = locate(weights)
    if not path.exists():
        raise WeightsError(f"{path.absolute()} does not exist; {fix}")
    return path


def _snapshot(weights: str) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    name, _, revision = weights.partition("@")
    cache = f"The cache is {constants.HF_HUB_CACHE} (HF_HOME moves it)."
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision or None,
                token=os.environ.get("HF_TOKEN") or False,
                allow_patterns=_FETCHED,
                ignore_patterns=_LEFT_OUT,
            )
        )
    except GatedRepoError as error:
        raise WeightsError(
            f"{name} is gated: accept its terms on its page and set HF_TOKEN in the environment"
        ) from error
    except RepositoryNotFoundError as error:
        raise WeightsError(
            f"{weights} is neither a path here nor a public model of the Hub; check the name, or set HF_TOKEN in the"
            " environment for a private one"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise WeightsError(
            f"{weights} is no path here, not in the cache, and could not be fetched: {first_line(error)}. {cache} Fetch it"
            f" where there is a network (`hf download {name}`), or give a folder"
        ) from error
