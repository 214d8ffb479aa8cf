"""Images as patches beside the image processors of transformers that work with PIL: to the bit, for any size."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from mt_core.media import MediaItem, MediaPart
from mt_plugin_multimodal.encoders.qwen import Qwen3VLConfig, Qwen25VLConfig

from .pictures import encoded, every_kind, picture

transformers = pytest.importorskip("transformers")

CONFIGS: dict[str, Any] = {
    "qwen2-5-vl": Qwen25VLConfig(patch=14, max_area=28 * 28 * 16),
    "qwen3-vl": Qwen3VLConfig(patch=16, min_area=32 * 32 * 4, max_area=32 * 32 * 16),
}


def theirs_of(config: Any) -> Any:
    """Their processor with the values of a config."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    bounds = {"shortest_edge": config.min_area, "longest_edge": config.max_area}
    return Qwen2VLImageProcessorPil(
        size=bounds, patch_size=config.shape.patch, image_mean=list(config.mean), image_std=list(config.std)
    )


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    "size", [(53, 37), (28, 28), (1, 150), (400, 30), (300, 310), (42, 70), (98, 14), (64, 48), (16, 16)]
)
def test_patches_their_order_and_the_grid_equal_those_of_transformers(kind: str, size: tuple[int, int]) -> None:
    config, image = CONFIGS[kind], picture(*size)
    processor, content = config.processor(), encoded(picture(*size), "PNG")
    expected = theirs_of(config)(images=[image], return_tensors="np")
    measured = processor.measure(MediaPart("image", content=content))
    assert list(measured.grid) == expected["image_grid_thw"][0].tolist()
    found = processor.read(MediaItem(kind, content=content, digest=measured.digest))
    assert found["pixels"].dtype == np.float32
    assert np.array_equal(found["pixels"], expected["pixel_values"])
    assert measured.features == len(found["pixels"]) == len(found["cells"]) == len(found["raster"])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("verify", ["full", "header"])
def test_images_are_measured_upright_by_their_header_too(verify: str, orientation: int) -> None:
    """As they are read: rows and columns change places where an orientation turns the image."""
    processor = CONFIGS["qwen3-vl"].model_copy(update={"verify": verify}).processor()
    for form in ("JPEG", "PNG"):
        content = encoded(picture(120, 40), form, orientation)
        measured = processor.measure(MediaPart("image", content=content))
        rows = int(processor.read(MediaItem("qwen3-vl", content=content))["cells"][:, 0].max()) + 1
        assert measured.grid is not None
        assert measured.grid[1] == rows
        assert (measured.grid[1] > measured.grid[2]) == (orientation >= 5)


def test_every_mode_and_orientation_is_read_as_transformers_reads_it() -> None:
    config = CONFIGS["qwen2-5-vl"]
    processor, theirs = config.processor(), theirs_of(config)
    for what, content in every_kind(40, 30):
        image = ImageOps.exif_transpose(Image.open(BytesIO(content)))
        expected = theirs(images=[image], return_tensors="np")
        measured = processor.measure(MediaPart("image", content=content))
        assert list(measured.grid) == expected["image_grid_thw"][0].tolist(), what
        found = processor.read(MediaItem("see", content=content))["pixels"]
        assert np.array_equal(found, expected["pixel_values"]), what


def test_windows_are_those_of_transformers() -> None:
    from transformers.vision_utils import get_vision_window_index

    for rows, columns in ((4, 4), (8, 8), (18, 6), (2, 34), (20, 22)):
        found = Qwen25VLConfig(patch=14).processor().places(rows, columns)["windows"]
        index, ends = get_vision_window_index(torch.tensor([[1, rows, columns]]), 2, 112, 14)
        patches = (index[:, None] * 4 + torch.arange(4)).flatten().numpy()
        expected = [set(each.tolist()) for each in np.split(patches, ends[1:-1].tolist())]
        assert [set(each[each >= 0].tolist()) for each in found] == expected


def test_entries_of_the_table_and_their_weights_are_those_of_transformers() -> None:
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights

    for rows, columns in ((2, 2), (4, 10), (48, 6), (64, 50)):
        found = Qwen3VLConfig(patch=16).processor().places(rows, columns)
        entries, weights = get_vision_interpolation_indices_and_weights(
            torch.tensor([[1, rows, columns]]), 48, align_corners=True, spatial_merge_size=2
        )
        assert np.array_equal(found["entries"], entries.numpy())
        assert np.array_equal(found["weights"], weights.numpy())
