"""Texts of a config that may stand in a file: the config then holds what the file says, so that a run needs it no more."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import expanduser
from pathlib import Path
from typing import Any

from mt_core.errors import did_you_mean
from mt_train.config.reading import read_small_text

OWN, PLAIN = "own", "plain"
TEMPLATES = (
    *(
        OWN,
        PLAIN,
        "alpaca",
        "baichuan2",
        "chatml",
        "cohere",
        "deepseek_r1",
        "deepseek_v3",
        "falcon",
        "functionary",
        "gemma",
        "glm4",
        "internlm2",
    ),
    *("llama2", "llama3", "llama3_1", "mistral", "mistral_v3", "phi3", "qwen2_5", "qwen3", "vicuna", "zephyr"),
)
"""Names for ``data.template``: the tokenizer's own, nothing between turns, and the Jinja files of ``data/templates``."""


def text_or_file(value: Any) -> Any:
    """The text, or that of the file in ``{file: path}``. Raises ``ValueError`` when it cannot be read."""
    if not isinstance(value, Mapping):
        return value
    if list(value) != ["file"] or not isinstance(value["file"], str):
        raise ValueError(f"is a text, or {{file: PATH}}, got {dict(value)!r}")
    return read_text(value["file"])


def template_source(value: str) -> str:
    """A known name as it is, the content of a file, or Jinja text as it is. Raises ``ValueError`` for anything else."""
    if value in TEMPLATES or "{{" in value or "{%" in value:
        return value
    if not any(mark in value for mark in "./\\"):
        raise ValueError(
            f"no template is named {value!r}. {did_you_mean(value, TEMPLATES)}Known: {', '.join(TEMPLATES)}; "
            "a Jinja file is given with its ending or folder, as in ./chat.jinja"
        )
    source = read_text(value)
    if "{{" not in source and "{%" not in source:
        raise ValueError(f"{value} is no Jinja template, it has neither {{{{ … }}}} nor {{% … %}}; name another file")
    return source


def read_text(path: str) -> str:
    """A UTF-8 file, without the newline at its end. Raises ``ValueError`` when it cannot be read."""
    try:
        return read_small_text(Path(expanduser(path)), "utf-8-sig").removesuffix("\n")
    except OSError as error:
        raise ValueError(f"cannot read the file {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the file {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
