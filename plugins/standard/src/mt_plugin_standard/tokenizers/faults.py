"""Files of Hugging Face tokenizers, tried before they are read here, and what native code does where it is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mt_core import MtError
from mt_core.files import panic_error, panics
from mt_plugin_standard.tokenizers.file_check import check_tokenizer

__all__ = ["catch_panics", "panics", "try_once"]

P = ParamSpec("P")
R = TypeVar("R")

_READ = (".json", ".txt", ".model", ".jinja")
"""Files of a folder that a tokenizer without a ``tokenizer.json`` is read from."""


def try_once(source: Path) -> None:
    """Try a tokenizer file, or a folder, that was not read here before (``tokenizers.file_check``). Raises ``MtError``."""
    file = source / "tokenizer.json" if source.is_dir() else source
    if file.is_file():
        check_tokenizer([file], "tokenizer.json", file, named=source)
    else:
        check_tokenizer(
            sorted(path for path in source.iterdir() if path.suffix in _READ and path.is_file()), "folder", source
        )


def catch_panics(method: Callable[P, R]) -> Callable[P, R]:
    """A method of a tokenizer with a ``_source`` whose native code may panic: that is an ``MtError`` then."""

    @wraps(method)
    def guard(*arguments: P.args, **named: P.kwargs) -> R:
        owner: Any
        try:
            return method(*arguments, **named)
        except panics() as error:
            owner = arguments[0]
            raise panic_error(f"the tokenizer of {owner._source.absolute()}", error) from error
        except Exception as error:
            if type(error) is not Exception:
                raise
            owner = arguments[0]  # the Rust side raises bare Exceptions
            raise MtError(f"the tokenizer of {owner._source.absolute()} cannot read this text: {error}") from error

    return guard
