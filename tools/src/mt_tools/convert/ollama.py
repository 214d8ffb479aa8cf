"""A ``Modelfile``, by which ollama serves a folder or a GGUF file (https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx).

ollama reads no Jinja, but templates of Go, over ``.Messages`` with ``.Role`` and ``.Content``. Those of some named templates are here; a
template that is not among them is refused, since a model that is asked otherwise than it was trained answers badly without a word.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mt_core.errors import UsageError
from mt_core.weights import read_json
from mt_tools.convert.tokenizer_files import TOKENIZER_CONFIG
from mt_train.config.data import DataConfig

FILE = "Modelfile"
EOS = "EOS"
"""Stands for the end token of the tokenizer in the templates below."""
_EACH = "{{- range .Messages }}"


@dataclass(frozen=True)
class GoTemplate:
    """A template without the token that begins a text, which ollama puts in front itself, and the text that ends an answer."""

    text: str
    stop: str


TEMPLATES: Mapping[str, GoTemplate] = {
    "chatml": GoTemplate(
        _EACH + "<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n", "<|im_end|>"
    ),
    "llama3": GoTemplate(
        _EACH
        + "<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n{{ .Content }}<|eot_id|>{{ end }}"
        + "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
    ),
    "gemma": GoTemplate(
        '{{- $system := "" }}{{ range .Messages }}{{ if eq .Role "system" }}{{ $system = .Content }}'
        + '{{ else if eq .Role "user" }}<start_of_turn>user\n{{ if $system }}{{ $system }}\n\n{{ $system = "" }}{{ end }}'
        + "{{ .Content }}<end_of_turn>\n{{ else }}<start_of_turn>model\n{{ .Content }}<end_of_turn>\n{{ end }}{{ end }}"
        + "<start_of_turn>model\n",
        "<end_of_turn>",
    ),
    "phi3": GoTemplate(_EACH + "<|{{ .Role }}|>\n{{ .Content }}<|end|>\n{{ end }}<|assistant|>\n", "<|end|>"),
    "zephyr": GoTemplate(_EACH + "<|{{ .Role }}|>\n{{ .Content }}EOS\n{{ end }}<|assistant|>\n", EOS),
}
"""By the names of ``data.template``."""


def check_template(config: DataConfig) -> None:
    """Raise ``UsageError`` for a template that ollama cannot be told, before anything is written."""
    given = config.template or "own"
    if given not in TEMPLATES:
        name = given if len(given) < 20 else "a Jinja template"
        raise UsageError(
            f"--ollama writes the templates {', '.join(TEMPLATES)}, and the run has {name!r}: ollama reads no Jinja. Serve it with"
            " llama.cpp or vLLM, which do"
        )
    if wrong := [f"data.{key}" for key in ("prefix", "postfix") if getattr(config, key)]:
        raise UsageError(
            f"--ollama: a Modelfile has no place for {', '.join(wrong)}, which the run puts around each question"
        )


def write_modelfile(folder: Path, gguf: Path | None, config: DataConfig) -> Path:
    """Write ``Modelfile`` into the folder, of its own weights or of a GGUF file; returns where."""
    found = TEMPLATES[str(config.template)]
    given = read_json(folder / TOKENIZER_CONFIG).get("eos_token")
    eos = str(given.get("content") if isinstance(given, Mapping) else given or "")
    source = "." if gguf is None else os.path.relpath(gguf, folder)
    lines = [
        f"FROM {source if source.startswith('.') else f'./{source}'}",
        f"TEMPLATE {_quote(found.text.replace(EOS, eos))}",
        f"PARAMETER stop {_quote(found.stop.replace(EOS, eos))}",
    ]
    if config.system:
        lines.append(f"SYSTEM {_quote(config.system)}")
    file = folder / FILE
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def _quote(text: str) -> str:
    """Raise ``UsageError`` for a text that ends the quotes of a Modelfile itself."""
    if '"""' in text or text.endswith('"'):
        raise UsageError(f"--ollama: a Modelfile cannot quote {text[:60]!r}, which has or ends with its quotes")
    return f'"""{text}"""'
