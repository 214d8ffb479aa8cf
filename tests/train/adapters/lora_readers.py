"""What others multiply the update of a LoRA by, each rule written from its source: no reader is asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

from torch import Tensor

Config = Mapping[str, Any]


def by_peft(config: Config, module: str, a_RE: Tensor) -> float:
    """peft 0.21, ``tuners/lora``: rank and alpha of the first expression that ends the name."""
    found = {
        key: next((value for name, value in config[pattern].items() if re.match(rf"(.*\.)?({name})$", module)), None)
        for key, pattern in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern"))
    }
    rank, alpha = found["r"] or config["r"], found["lora_alpha"] or config["lora_alpha"]
    assert len(a_RE) == rank, "peft refuses another shape"
    return alpha / (sqrt(rank) if config["use_rslora"] else rank)


def by_vllm(config: Config, module: str, a_RE: Tensor) -> float:
    """vLLM, ``vllm/lora/peft_helper.py``: one factor for all layers."""
    return config["lora_alpha"] / (sqrt(config["r"]) if config["use_rslora"] else config["r"])


def by_llama_cpp(config: Config, module: str, a_RE: Tensor) -> float:
    """llama.cpp, ``llama_adapter_lora_weight::get_scale``: one alpha over the tensor's own rank."""
    return config["lora_alpha"] / len(a_RE)


def by_sglang(config: Config, module: str, a_RE: Tensor) -> float:
    """SGLang, ``sglang/srt/lora``: no rsLoRA."""
    return config["lora_alpha"] / config["r"]


READERS: dict[str, Callable[[Config, str, Tensor], float]] = {
    "peft": by_peft,
    "vllm": by_vllm,
    "llama.cpp": by_llama_cpp,
    "sglang": by_sglang,
}


def refuse_distance(config: Config, tensors: Mapping[str, Tensor], place: str, want_FE: Tensor, most: float) -> None:
    """Fail where a reader computes another change of a layer than ``want_FE`` from a file, beyond ``most`` of its size."""
    a_RE, b_FR = (tensors[f"base_model.model.{place}.lora_{which}.weight"].double() for which in "AB")
    for reader, scale in READERS.items():
        apart = float((scale(config, place, a_RE) * b_FR @ a_RE - want_FE.double()).norm())
        assert apart <= most * float(want_FE.double().norm()), f"{reader}, {place}: {apart}"
