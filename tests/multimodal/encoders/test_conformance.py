"""Every encoder, as the kit tests them."""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt_conformance import BaseEncoderConformance
from mt_plugin_multimodal import plugin

from ..pictures import animation, encoded, picture

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SOUND: dict[str, Any] = {
    "conv_dim": [8, 8],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
VIT = {"model_type": "vit", **SIZES, "image_size": 16, "patch_size": 4}
ESM = {"model_type": "esm", **SIZES, "vocab_size": 33, "pad_token_id": 1, "max_position_embeddings": 40}
OPTIONS: dict[str, Any] = {
    "clip": {"keep_class": True},
    "siglip": {"layer": -2},
    "dinov2": {},
    "qwen2-5-vl": {"blocks": 3, "window": 16, "min_area": 64, "max_area": 1024},
    "qwen3-vl": {"taps": [0, 2], "table": 5, "min_area": 64, "max_area": 1024, "projector": {"levels": 2}},
    "whisper": {"n_mels": 8, "dim": 16, "n_layers": 2, "n_heads": 2, "ffn_dim": 24, "n_features": 10},
    "hf-image": {"config": VIT},
    "hf-audio": {"config": {"model_type": "wav2vec2", **SIZES, **SOUND}},
    "hf-sequence": {"config": {**ESM, "position_embedding_type": "rotary", "mask_token_id": 32}},
}
LETTERS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]


def wav(samples: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(np.random.default_rng(samples).normal(scale=3000, size=samples).astype("<i2").tobytes())
    return file.getvalue()


IMAGES = (encoded(picture(20, 12), "PNG"), encoded(picture(16, 40), "JPEG"), encoded(picture(9, 9, "RGBA"), "WEBP"))


def test_each_encoder_is_here() -> None:
    assert set(OPTIONS) == {each.name for each in plugin.mt_encoders()}


class TestEncoders(BaseEncoderConformance):
    plugin = plugin

    @pytest.fixture(autouse=True, params=sorted(OPTIONS))
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param
        if self.name in ("whisper", "hf-audio"):
            self.contents, self.broken = (wav(400), wav(47), wav(3001)), (b"", b"RIFF", wav(0), wav(3001)[:-1])
        elif self.name == "hf-sequence":
            self.contents, self.broken = (b"MKTAY", b"M", b"ACDEFGHIK"), (b"", b" ", b"MK1", b"\xff", b"M" * 39)
        else:
            self.contents, self.broken = IMAGES, (b"", b"RIFF", IMAGES[0][:-40], animation("GIF"))

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        if self.name != "hf-sequence":
            return OPTIONS[self.name]
        (folder / "vocab.txt").write_text("\n".join(LETTERS))
        return {**OPTIONS[self.name], "weights": str(folder)}
