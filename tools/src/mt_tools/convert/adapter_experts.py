"""Adapters over a mixture of experts, as peft opens them: transformers keeps the experts of a layer in one tensor. Imports no torch.

peft opens the listed experts of some model types (``peft/utils/transformers_weight_conversion.py``): it takes all targets that are named as
an expert's layers are for those, so that other layers of these names have none. Of other types it finds no expert, and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mt_tools.convert.source import Say, Source

_MIXTRAL, _QWEN = ("w1", "w3", "w2", "gate"), ("gate_proj", "up_proj", "down_proj", "gate")
_TYPES = """
afmoe beam cohere2_moe deepseek_v2 deepseek_v3 dots1 ernie4_5_moe exaone_moe flex_olmo glm4_moe glm4_moe_lite hunyuan_v1_moe longcat_flash
mellum olmoe qwen3_moe qwen3_next solar_open
"""
READ_BY_PEFT = {
    **dict.fromkeys(("minimax", "minimax_m2", "mixtral"), _MIXTRAL),
    **dict.fromkeys(_TYPES.split(), _QWEN),
}
"""Model type whose experts peft 0.21 opens → names of targets that it takes for them; the first two are one tensor there."""
_EXPERT = re.compile(r"\.experts\.\d+\.")


def say_experts(source: Source, modules: Sequence[str], config: Mapping[str, Any], say: Say) -> None:
    """Say which layers of an adapter peft would read over, or why it does not open it."""
    assert source.writer.exported is not None, "a source has a format that writes"
    kind = str(source.writer.exported(source.parts.config.model.options).get("model_type"))
    lora = config["peft_type"] == "LORA"
    whole = "here it is read whole, and --merge writes a model that all read"
    if lora and (fault := find_fault(kind, modules, config)):
        say(f"notice: peft does not open this adapter over a {kind} model: {fault}; {whole}")
    elif unread := find_unread(kind, modules, lora=lora):
        what = "the experts" if _EXPERT.search(unread[0]) else "layers that are named as those of experts are"
        say(
            f"notice: peft reads over {len(unread)} layers of this adapter, {what} of a {kind} model ({unread[0]}, …), and computes"
            f" something else without a word; {whole}. For peft train with --adapter.targets without them"
        )


def find_unread(kind: str, modules: Sequence[str], *, lora: bool) -> list[str]:
    """Return the modules of an adapter that peft does not find in a model of this type."""
    taken = READ_BY_PEFT.get(kind) if lora else None
    if taken is None:
        return [name for name in modules if _EXPERT.search(name)]
    return [name for name in modules if name.rpartition(".")[2] in taken and not _EXPERT.search(name)]


def find_fault(kind: str, modules: Sequence[str], config: Mapping[str, Any]) -> str | None:
    """Return why peft refuses a LoRA over experts; ``None`` where it does not."""
    last = {name.rpartition(".")[2] for name in modules}
    taken = READ_BY_PEFT.get(kind, ())
    if not last & {*taken}:
        return None
    if lacking := sorted({*taken[:2]} - last) if last & {*taken[:2]} else []:
        return f"it takes {' and '.join(taken[:2])} together alone, and {lacking[0]} is not among the targets"
    if config.get("use_dora"):
        return "it has no DoRA over experts"
    if config.get("lora_dropout"):
        return f"it has no dropout over experts; lora_dropout={config['lora_dropout']} in adapter_config.json may be set to 0"
    return None
