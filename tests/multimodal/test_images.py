"""The image processor beside those of transformers, and whatever bytes may come."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from mt_core import DataError, WeightsError
from mt_core.media import MediaItem, MediaPart
from mt_plugin_multimodal.encoders.vit import ClipConfig, Dinov2Config, SiglipConfig, ViTConfig
from mt_plugin_multimodal.image_config import PREPROCESSOR, read_processor
from mt_plugin_multimodal.images import ImageProcessor
from mt_plugin_multimodal.llava import write_processor

from .pictures import animation, encoded, every_kind, picture

SIDES = [(1, 1), (1, 3), (3, 1), (3, 3), (3, 4), (4, 3), (3, 200), (16, 16), (15, 17), (90, 20), (7, 600)]


def processor(config: ViTConfig) -> ImageProcessor:
    shape = config.shape
    return config.processor(side=shape.image, patch=shape.patch, before=0)


def theirs(name: str, **options: Any) -> Any:
    clip = pytest.importorskip("transformers.models.clip.image_processing_pil_clip")
    siglip = pytest.importorskip("transformers.models.siglip.image_processing_pil_siglip")
    bit = pytest.importorskip("transformers.models.bit.image_processing_pil_bit")
    llava = pytest.importorskip("transformers.models.llava.image_processing_pil_llava")
    deit = pytest.importorskip("transformers.models.deit.image_processing_pil_deit")
    classes = {
        "deit": deit.DeiTImageProcessorPil,
        "clip": clip.CLIPImageProcessorPil,
        "siglip": siglip.SiglipImageProcessorPil,
        "dinov2": bit.BitImageProcessorPil,
        "llava": llava.LlavaImageProcessorPil,
    }
    return classes[name](**options)


SQUARE = {"height": 16, "width": 16}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
CASES: dict[str, tuple[ViTConfig, str, dict[str, Any]]] = {
    "clip": (ClipConfig(), "clip", {"size": {"shortest_edge": 16}, "crop_size": SQUARE}),
    "siglip": (SiglipConfig(), "siglip", {"size": SQUARE}),
    "dinov2": (Dinov2Config(), "dinov2", {"size": {"shortest_edge": 18}, "crop_size": SQUARE, **IMAGENET}),
    "llava": (ClipConfig(fit="pad"), "llava", {"size": {"shortest_edge": 16}, "crop_size": SQUARE, "do_pad": True}),
    "stretched, then cropped": (
        Dinov2Config(fit="stretch", edge=23),
        "deit",
        {"size": {"height": 23, "width": 23}, "crop_size": SQUARE, **IMAGENET, "do_convert_rgb": True},
    ),
    "larger edge": (ClipConfig(edge=23), "clip", {"size": {"shortest_edge": 23}, "crop_size": SQUARE}),
}


def expected(reference: Any, content: bytes) -> np.ndarray:
    return np.asarray(reference(ImageOps.exif_transpose(Image.open(BytesIO(content))))["pixel_values"][0])


@pytest.mark.parametrize("case", CASES)
def test_pixels_equal_those_of_transformers_for_every_mode_orientation_and_side(case: str) -> None:
    config, name, options = CASES[case]
    reader, reference = processor(config), theirs(name, **options)
    files = list(every_kind()) + [(f"{side}", encoded(picture(*side, "RGBA"), "PNG")) for side in SIDES]
    for kind, content in files:
        found = reader.read(MediaItem("clip", content=content))["pixels"]
        assert found.dtype == np.float32
        assert np.array_equal(found[0], expected(reference, content)), kind


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_a_folder_says_is_what_transformers_does_with_it(case: str, nested: bool, tmp_path: Path) -> None:
    config, name, options = CASES[case]
    reference = theirs(name, **options, resample=2)
    reference.save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    if nested:
        (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": json.loads(file.read_text())}))
        file.write_text(json.dumps({"size": 3, "image_mean": [0, 0, 0]}))
    values = read_processor(tmp_path, crops=name != "siglip")
    reader = processor(type(config)(**values))
    for kind, content in every_kind(31, 20):
        assert np.array_equal(
            reader.read(MediaItem("a", content=content))["pixels"][0], expected(reference, content)
        ), kind


@pytest.mark.parametrize(
    ("said", "values"),
    [
        (
            {"size": 224, "crop_size": 224, "resample": 3},
            {"fit": "crop", "image": 224, "filter": "bicubic"},
        ),
        (
            {"size": 256, "crop_size": 224, "resample": 2},
            {"fit": "crop", "image": 224, "edge": 256, "filter": "bilinear"},
        ),
        ({"size": 224, "do_center_crop": False}, {"fit": "stretch", "image": 224}),
        (
            {"size": 256, "crop_size": 224, "feature_extractor_type": "DeiTFeatureExtractor"},
            {"fit": "stretch", "image": 224, "edge": 256},
        ),
        ({"do_normalize": False}, {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}),
    ],
)
def test_older_files_are_read(said: dict[str, Any], values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert read_processor(tmp_path, crops=True) == values


@pytest.mark.parametrize("edge", [None, 23])
@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_what_is_written_for_a_llava_is_what_was_read(fit: Any, edge: int | None, tmp_path: Path) -> None:
    config = ClipConfig(fit=fit, edge=edge)
    said = write_processor(config, "<image>")[PREPROCESSOR]
    (tmp_path / PREPROCESSOR).write_text(json.dumps(said))
    values = read_processor(tmp_path, crops=True)
    assert (values["fit"], values["image"], values.get("edge")) == (fit, 16, edge)
    name = said["image_processor_type"].removesuffix("ImageProcessor").lower()
    reference = type(theirs(name)).from_pretrained(tmp_path)
    content = encoded(picture(31, 20), "PNG")
    found = processor(config).read(MediaItem("a", content=content))["pixels"][0]
    assert np.array_equal(found, expected(reference, content))


@pytest.mark.parametrize(
    "said",
    [
        {"do_resize": False},
        {"do_pan_and_scan": True},
        {"rescale_factor": 1 / 127.5},
        {"size": {"shortest_edge": 224}, "do_center_crop": False},
        {"size": {"height": 224, "width": 448}, "do_center_crop": False},
        {"size": {"longest_edge": 224}},
        {"resample": 17},
        {"image_mean": "white"},
    ],
)
def test_a_folder_that_does_something_else_is_refused(said: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    with pytest.raises(WeightsError, match=r"preprocessor_config\.json"):
        read_processor(tmp_path, crops=True)


def test_a_folder_without_a_processor_says_nothing(tmp_path: Path) -> None:
    assert read_processor(tmp_path, crops=True) == {}


# ------------------------------------------------------------------------------------------------------------ content


def test_transparent_images_stand_on_the_colour_that_is_said() -> None:
    clear = Image.new("RGBA", (8, 8), (9, 9, 9, 0))
    reader = processor(SiglipConfig(background="#ff0000"))
    pixels = reader.read(MediaItem("a", content=encoded(clear, "PNG")))["pixels"]
    assert pixels[0, :, 3, 3].tolist() == [1.0, -1.0, -1.0]


def test_features_follow_from_the_header_and_the_digest_from_the_content(tmp_path: Path) -> None:
    reader = processor(ClipConfig())
    path = tmp_path / "image.png"
    path.write_bytes(encoded(picture(), "PNG"))
    measured = reader.measure(MediaPart("image", path=str(path)))
    assert (measured.features, measured.grid, len(measured.digest)) == (16, (1, 4, 4), 8)
    assert measured == reader.measure(MediaPart("image", content=path.read_bytes()))
    item = MediaItem("clip", path=str(path), digest=measured.digest)
    assert reader.read(item)["pixels"].shape == (1, 3, 16, 16)
    path.write_bytes(encoded(picture(seed=1), "PNG"))
    with pytest.raises(DataError, match="another content"):
        reader.read(item)


def test_a_photograph_with_smaller_copies_in_it_is_no_animation() -> None:
    several = encoded(picture(), "MPO", save_all=True, append_images=[picture(10, 10)])
    reader = processor(ClipConfig())
    pixels = reader.read(MediaItem("a", content=several))["pixels"]
    assert np.array_equal(pixels, reader.read(MediaItem("a", content=encoded(picture(), "JPEG")))["pixels"])


def test_pixels_are_looked_at_when_rows_are_encoded_unless_the_header_is_enough() -> None:
    cut = encoded(picture(), "PNG")[:-200]
    with pytest.raises(DataError, match="a:1 is truncated or damaged"):
        processor(ClipConfig()).measure(MediaPart("image", content=cut, place="a:1"))
    quick = processor(ClipConfig(verify="header"))
    measured = quick.measure(MediaPart("image", content=cut, place="a:1"))
    with pytest.raises(DataError, match="truncated or damaged"):
        quick.read(MediaItem("clip", content=cut, digest=measured.digest))


def huge_png(width: int, height: int) -> bytes:
    """The header of an image, and no pixels behind it."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = b"\0\0\0\x09IDAT"
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + pixels


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no image that can be read"),
    "text": (b"no image at all", "no image that can be read"),
    "another format": (encoded(picture(), "TIFF"), "no image that can be read"),
    "16 bits": (encoded(Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 999), "PNG"), "16 bits or more"),
    "animated gif": (animation("GIF"), "an animation"),
    "animated png": (animation("PNG"), "an animation"),
    "animated webp": (animation("WEBP"), "an animation"),
    "too many pixels": (huge_png(60_000, 60_000), "more than max_pixels"),
    "more pixels than PIL warns of": (huge_png(12_000, 10_000), "more than max_pixels"),
    "no pixels": (huge_png(0, 5), "no image that can be read|0 x 5 pixels"),
    "a line": (encoded(picture(201, 1), "PNG"), "200 times"),
    **{
        f"truncated {name}": (encoded(picture(), name)[:-90], "truncated or damaged")
        for name in ("PNG", "BMP", "WEBP", "GIF")
    },
    "truncated JPEG": (encoded(picture(), "JPEG")[:700], "truncated or damaged"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_content_is_one_message_that_says_where(case: str) -> None:
    content, message = BAD[case]
    with pytest.raises(DataError, match=message) as caught:
        processor(ClipConfig()).measure(MediaPart("image", content=content, place="rows.jsonl:7, images"))
    assert str(caught.value).startswith("rows.jsonl:7, images ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_what_is_no_file_is_one_message(tmp_path: Path) -> None:
    reader = processor(ClipConfig())
    os.mkfifo(tmp_path / "pipe")
    large = tmp_path / "large.bmp"
    large.write_bytes(encoded(picture(), "BMP"))
    small = processor(ClipConfig(max_bytes=100))
    for path, read, message in (
        (tmp_path / "missing.png", reader, "cannot read"),
        (tmp_path, reader, "cannot read"),
        (tmp_path / "pipe", reader, "no regular file"),
        (Path("/dev/zero"), reader, "no regular file"),
        (Path(f"{tmp_path}/a\0b"), reader, "cannot read"),
        (large, small, "larger than max_bytes=100"),
    ):
        with pytest.raises(DataError, match=message):
            read.measure(MediaPart("image", path=str(path), place="rows.jsonl:7, images"))


MUTATE = """
import resource, sys
import numpy as np
from tests.multimodal.pictures import animation, every_kind
from tests.multimodal.test_images import processor
from mt_core import DataError
from mt_core.media import MediaPart
from mt_plugin_multimodal.encoders.vit import ClipConfig

draw = np.random.default_rng(0)
files = [content for _, content in every_kind(32, 24)] + [animation(name) for name in ("GIF", "PNG", "WEBP")]
reader = processor(ClipConfig())
for content in files[:30]:
    reader.measure(MediaPart("image", content=content))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bad = 0
for number in range(600):
    content = bytearray(files[draw.integers(len(files))])
    if number % 3 == 0:
        content = content[: draw.integers(len(content))]
    for _ in range(draw.integers(1, 8)):
        if content:
            content[draw.integers(min(len(content), (64, 10**6)[number % 2]))] = draw.integers(256)
    try:
        reader.measure(MediaPart("image", content=bytes(content)))
    except DataError as error:
        bad += 1
        assert "\\n" not in str(error), error
print(bad, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_hundreds_of_mutated_files_are_images_or_bad_ones_in_little_memory() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", MUTATE], capture_output=True, text=True, cwd=root, check=True, timeout=120
    )
    bad, megabytes = map(int, done.stdout.split())
    assert 200 < bad < 600
    assert megabytes < 100
    assert done.stderr == ""


def test_people_see_a_small_image_and_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    path.write_bytes(encoded(picture(400, 200), "JPEG", orientation=6))
    reader, item = processor(ClipConfig()), MediaItem("clip", path=str(path))
    assert reader.describe(item) == "image 400×200"
    with Image.open(BytesIO(reader.thumbnail(item))) as small:
        assert (small.format, small.size) == ("PNG", (48, 96)), "upright"
