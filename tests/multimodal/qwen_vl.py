"""Tiny Qwen-VL models that transformers writes, and rows and pictures for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt_core.nn import Batch

from .pictures import picture

TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 48,
    "depth": 4,
    "patch_size": 4,
    "out_hidden_size": 32,
}
IMAGE, START, END = 299, 297, 296
"""Ids of an image's places, and of what stands around them."""
SIZES = ((24, 20), (56, 16), (13, 50), (8, 8))
"""Width and height of pictures: several windows, less than one, edges that no window fills."""
KINDS = ("qwen2-5-vl", "qwen3-vl")
SMALL: dict[str, Any] = {"weights": "model", "min_area": 64, "max_area": 1024}
"""Options that keep pictures small."""


def write_qwen(folder: Path, kind: str, **options: Any) -> Any:
    """Write a model of random weights, all of them other than zero and one; return the model of transformers."""
    import transformers

    torch.manual_seed(0)
    ids = {"image_token_id": IMAGE, "video_token_id": 298, "vision_start_token_id": START, "vision_end_token_id": END}
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    if kind == "qwen2-5-vl":
        vision = {**VISION, "window_size": 16, "fullatt_block_indexes": [1, 3]}
        text = {**TEXT, "rope_parameters": {**rope, "mrope_section": [1, 1, 2]}}
        made, of = transformers.Qwen2_5_VLForConditionalGeneration, transformers.Qwen2_5_VLConfig
    else:
        vision = {**VISION, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]}
        text = {**TEXT, "head_dim": 16, "rope_parameters": {**rope, "mrope_section": [4, 2, 2]}}
        made, of = transformers.Qwen3VLForConditionalGeneration, transformers.Qwen3VLConfig
    text |= options.pop("text", {})
    model = made(of(vision_config={**vision, **options.pop("vision", {})}, text_config=text, **ids, **options)).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return model


def write_images(folder: Path, sizes: Sequence[tuple[int, int]] = SIZES) -> list[Path]:
    """Noise, each another one."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        picture(*size, seed=number).save(path)
    return paths


def theirs_of(batch: Batch, name: str) -> dict[str, Tensor]:
    """What their model takes for the rows of a batch: images are found by an id and a kind."""
    ids_BT, media = batch.input_ids.clone(), batch.media.get(name)
    kinds_BT = torch.zeros_like(ids_BT)
    if media is None or not media.items:
        return {"input_ids": ids_BT, "mm_token_type_ids": kinds_BT}
    ids_BT.view(-1)[media.places_M], kinds_BT.view(-1)[media.places_M] = IMAGE, 1
    assert media.inputs is not None, "a batch is read before"
    grids = torch.tensor([list(grid or ()) for grid in media.grids])
    return {
        "input_ids": ids_BT,
        "mm_token_type_ids": kinds_BT,
        "pixel_values": media.inputs["pixels"],
        "image_grid_thw": grids,
    }
