"""The section of docs/finetune.md that says which model types are trained how, from the table of the huggingface plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "finetune.md"
TABLE = ROOT / "plugins/huggingface/src/mt_plugin_huggingface/types.json"
BEGIN, END = "<!-- types: begin -->", "<!-- types: end -->"


LAYOUTS = {"sequence": "sequence parallelism", "pipeline": "pipelines", "expert": "expert parallelism"}
REST = {
    "packing": ("packed or padded", "padded rows"),
    "adapters": ("adapters", "no adapter"),
    "quantizer": ("quantizers", "no quantizer"),
}
"""Key of a limit → how it is without, and with the limit."""


def section() -> str:
    """All types: how each is trained, or why it is refused."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    types: dict[str, dict[str, Any]] = table["types"]
    how: dict[tuple[str, str], list[str]] = {}
    for kind, entry in types.items():
        how.setdefault(_how(entry.get("limits", {})), []).append(kind)
    for kind, reason in sorted(table["refused"].items()):
        how.setdefault(("refused", reason), []).append(kind)
    return "\n".join(
        [
            f"By `model_type` of `config.json`, with transformers {table['transformers']}: {len(types)} types can be trained,"
            f" {len(table['refused'])} are refused by name, because the result would be silently wrong, or because they were not tried.",
            "",
            "| how | why | types |",
            "|---|---|---|",
            *(f"| {what} | {why} | {', '.join(kinds)} |" for (what, why), kinds in sorted(how.items(), key=_order)),
            "",
            "Tests compare each type with transformers: logits, gradients, packed or padded rows, generation with a KV cache, and written",
            "folders. In CI some types run on every layout (`bloom`, `deepseek_v3`, `gemma2`, `gpt2`, `gpt_oss`, `mistral`,",
            "`qwen3_moe`), and some with LoRA and an export (`glm4`, `gpt_oss`, `mixtral`); the others run with `-m soak`.",
            "",
            f"- RoPE scaling that depends on the length of the text (`dynamic`, `longrope`): {_those(types, 'rotary_by_length')}.",
            f"- The head is more than a matrix product, and so not fused with the loss: {_those(types, 'plain_head', False)}.",
            "- `train.compile` works with none of these types.",
        ]
    )


def _how(limits: dict[str, str]) -> tuple[str, str]:
    """What a type can do, and why no more."""
    missing = [LAYOUTS[key] for key in LAYOUTS if key in limits]
    layouts = f"every layout but {' and '.join(missing)}" if missing else "every layout"
    rest = [said[key in limits] for key, said in REST.items()]
    return ", ".join([layouts, *rest]), "; ".join(dict.fromkeys(limits.values()))


def _order(item: tuple[tuple[str, str], list[str]]) -> tuple[bool, bool, str]:
    (what, why), _ = item
    return what == "refused", bool(why), what + why


def _those(types: dict[str, dict[str, Any]], key: str, value: bool = True) -> str:
    return ", ".join(kind for kind, entry in types.items() if entry.get(key, False) is value)


def page() -> str:
    """The page with the section as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{section()}\n\n{END}{rest.partition(END)[2]}"
