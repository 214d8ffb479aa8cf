"""The section of docs/finetune.md that says which model types are trained how, from the table of the huggingface plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "finetune.md"
TABLE = ROOT / "plugins/huggingface/src/mt_plugin_huggingface/types.json"
BEGIN, END = "<!-- types: begin -->", "<!-- types: end -->"


def section() -> str:
    """Types that are trained, what some of them cannot do, and types that are refused, by reason."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    types, reasons = table["types"], {}
    for kind, reason in table["refused"].items():
        reasons.setdefault(reason, []).append(kind)
    limited = [
        f"- Without {key} ({reason}): {', '.join(f'`{kind}`' for kind in types if types[kind].get('limits', {}).get(key) == reason)}."
        for key, reason in dict.fromkeys(pair for entry in types.values() for pair in entry.get("limits", {}).items())
    ]
    own = [kind for kind in types if not types[kind]["plain_head"]]
    refused = [f"| {reason} | {', '.join(sorted(kinds))} |" for reason, kinds in sorted(reasons.items())]
    listed = ", ".join(f"`{kind}`" for kind in types)
    capped = ", ".join(f"`{kind}`" for kind in own)
    return "\n".join(
        [
            f"By `model_type` of `config.json`, with transformers {table['transformers']}, {len(types)} are trained: {listed}.",
            "",
            "Of each the tests compare logits, gradients, packed rows, text with a cache and written folders with transformers' own; some",
            "run on every layout (`deepseek_v3`, `falcon_h1`, `gemma2`, `gpt2`, `gpt_oss`, `mistral`, `qwen3_moe`), others with LoRA and an",
            "export (`glm4`, `gpt_oss`, `mixtral`). What is left out of CI runs with `-m soak`.",
            "",
            *limited,
            f"- The head does more than multiply by its matrix, and is not fused with the loss: {capped}.",
            "- No type is compiled (`train.compile`).",
            "",
            "Refused by name, since each would be wrong without a word:",
            "",
            "| reason | types |",
            "|---|---|",
            *refused,
        ]
    )


def page() -> str:
    """The page with the section as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{section()}\n\n{END}{rest.partition(END)[2]}"
