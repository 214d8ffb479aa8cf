"""Notices on peft and adapters over experts, compared with peft's own tables."""

from __future__ import annotations

from typing import Any

import pytest
from peft.utils.transformers_weight_conversion import _MODEL_TO_CONVERSION_PATTERN, _MOE_TARGET_MODULE_MAPPING
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mt_tools.convert.adapter_experts import READ_BY_PEFT, find_fault, find_unread

LAYER = "model.layers.1"
EXPERTS = [
    f"{LAYER}.mlp.experts.{number}.{name}" for number in (0, 1) for name in ("gate_proj", "up_proj", "down_proj")
]
SHARED = [f"{LAYER}.mlp.shared_experts.{name}" for name in ("gate_proj", "up_proj", "down_proj")]
ATTENTION = [f"{LAYER}.self_attn.q_proj"]


def test_the_types_whose_experts_peft_opens_are_those_of_its_own_tables() -> None:
    theirs = {
        kind: set(_MOE_TARGET_MODULE_MAPPING[pattern])
        for kind, pattern in _MODEL_TO_CONVERSION_PATTERN.items()
        if pattern in _MOE_TARGET_MODULE_MAPPING and kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    }
    theirs = {kind: names for kind, names in theirs.items() if get_checkpoint_conversion_mapping(kind) is not None}
    assert theirs.keys() >= READ_BY_PEFT.keys()
    assert all(theirs[kind] == {*names} for kind, names in READ_BY_PEFT.items())


@pytest.mark.parametrize(
    ("kind", "modules", "unread"),
    [
        ("qwen3_moe", [*ATTENTION, *EXPERTS], []),
        ("deepseek_v3", [*ATTENTION, *EXPERTS, *SHARED], SHARED),
        ("deepseek_v3", [*ATTENTION, *SHARED], SHARED),
        ("qwen2_moe", [*ATTENTION, *EXPERTS, *SHARED], EXPERTS),
        ("llama", [*ATTENTION, f"{LAYER}.mlp.gate_proj"], []),
    ],
)
def test_layers_that_peft_reads_over_are_experts_of_types_that_it_does_not_know_or_their_kin(
    kind: str, modules: list[str], unread: list[str]
) -> None:
    assert find_unread(kind, modules, lora=True) == unread
    assert find_unread(kind, modules, lora=False) == [name for name in modules if name in EXPERTS]


@pytest.mark.parametrize(
    ("modules", "config", "fault"),
    [
        (EXPERTS, {"lora_dropout": 0.0}, None),
        (EXPERTS[:1], {}, "up_proj is not among the targets"),
        (EXPERTS[2:3], {}, None),
        (EXPERTS, {"use_dora": True}, "no DoRA over experts"),
        (EXPERTS, {"lora_dropout": 0.1}, "lora_dropout=0.1 in adapter_config.json may be set to 0"),
        (ATTENTION, {"lora_dropout": 0.1}, None),
    ],
)
def test_why_peft_does_not_open_a_lora_over_experts(
    modules: list[str], config: dict[str, Any], fault: str | None
) -> None:
    found = find_fault("qwen3_moe", modules, config)
    assert found is None if fault is None else fault in str(found)
