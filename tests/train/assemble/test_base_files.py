"""Files under trained weights: those of an encoder count for the run that resumes, and for no adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_conformance.host import named_host
from mt_train.assemble.base_files import base_files, first_paths, hashes_under
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of an encoder."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("mt_plugin_multimodal")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPVisionConfig(**shape, image_size=16, patch_size=4)
    transformers.CLIPVisionModel(config).save_pretrained(tmp_path / "clip")
    return tmp_path / "clip"


def test_the_files_of_an_encoder_are_under_a_run_and_under_no_adapter(folder: Path) -> None:
    raw = {
        "model": {"name": "llama", "vocab_size": 300},
        "dataset": {"name": "jsonl", "path": str(folder.parent)},
        "encoders": {"clip": {"weights": str(folder)}},
    }
    parts = Parts.of(resolve(raw, named_host("mt_plugin_llama.plugin", "mt_plugin_multimodal.plugin")))
    before = base_files(parts)
    assert list(before) == ["encoders/clip/model.safetensors"]
    assert first_paths(parts) == [folder / "model.safetensors"]
    assert hashes_under(before, 0) == (set(), set())
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert base_files(parts) != before
