"""Tiny LLaVA models that transformers writes, and what reads them here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mt_core.generation import GenerationConfig, SamplingRules
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.load import load
from mt_train.assemble.parts import Parts
from mt_train.generation.loaded_model import LoadedModel
from mt_train.plugins.resolve import resolve

from .pictures import picture

VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 20,
    "patch_size": 5,
}
TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
IMAGE = 299
"""Id that stands in the places of an image: none of the tokenizer's bytes."""
TOKENS = 16
"""Places of an image."""
GREEDY = GenerationConfig(rules=SamplingRules(greedy=True), max_new_tokens=8)


def write_llava(folder: Path, vision: str, text: str, **options: Any) -> Any:
    """Write a LLaVA of random weights, all of them other than zero and one; return the model of transformers."""
    import transformers

    torch.manual_seed(0)
    visions = {"clip": transformers.CLIPVisionConfig, "siglip": transformers.SiglipVisionConfig}
    texts = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}
    given = {"vision_feature_select_strategy": "default" if vision == "clip" else "full", **options}
    shape = {**TEXT, **given.pop("text_options", {})}
    config = transformers.LlavaConfig(
        vision_config=visions[vision](**VISION),
        text_config=texts[text](**shape),
        image_token_index=IMAGE,
        **given,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return model


def open_llava(folder: Path, encoder: str, **raw: Any) -> tuple[Parts, LoadedModel]:
    """The model of a folder with its encoder, as a run names it."""
    named = {"model": {"weights": str(folder)}, "encoders": {encoder: {"weights": "model"}}, **raw}
    parts = Parts.of(resolve({"train": {"sequence_len": 2}, **named}, discover_plugins()))
    return parts, load(parts, None, lambda text: None)


def write_pictures(folder: Path, count: int) -> list[Path]:
    """Noise, each another one."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        image: Image.Image = picture(24 + number, 20, seed=number)
        image.save(path)
    return paths
