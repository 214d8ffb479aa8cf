"""What a tuned folder adds to its base, and back: bit for bit, of the right base only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mt_core.weights import open_folder
from mt_tools.convert.delta import content_hash

Convert = Callable[..., str]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def assert_equal(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.dtype == after[name].dtype
        assert torch.equal(value.view(torch.uint8), after[name].view(torch.uint8)), name


@pytest.fixture
def tuned_folder(pretrained_folder: Path, convert: Convert, tmp_path: Path) -> Path:
    """The base with more tokens, in bf16, and odd values: infinities, NaN, minus zero."""
    convert("resize-vocab", pretrained_folder, tmp_path / "tuned", "--add-tokens", "Paris", "--dtype", "bf16")
    changed = tensors(tmp_path / "tuned")
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0, 1e-40])
    changed["model.norm.weight"][:5] = odd.to(torch.bfloat16)
    changed["model.layers.0.mlp.up_proj.weight"] += 0.01
    changed["extra.weight"] = torch.ones(3, dtype=torch.bfloat16)
    save_file(changed, tmp_path / "tuned/model.safetensors", {"format": "pt"})
    return tmp_path / "tuned"


def test_a_delta_gives_the_tuned_folder_back_bit_for_bit(
    tuned_folder: Path, pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    convert("delta", "make", pretrained_folder, tuned_folder, tmp_path / "delta", "--shard-size", "20KB")
    assert len(list((tmp_path / "delta").glob("*.safetensors"))) > 1
    convert("delta", "apply", pretrained_folder, tmp_path / "delta", tmp_path / "again")
    assert_equal(tensors(tuned_folder), tensors(tmp_path / "again"))
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "again" / name).read_text() == (tuned_folder / name).read_text()
    same = tensors(tmp_path / "delta")["model.layers.1.mlp.up_proj.weight"]
    assert not same.any(), "what was not tuned is zero, which packs well"


@pytest.mark.parametrize("base", ["scaled", "plain"])
def test_weights_in_fp8_come_back_with_their_scales(
    base: str, pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    """As published folders of DeepSeek and Qwen have them; the base may be one in 16 bits."""
    name = "model.layers.0.mlp.up_proj.weight"
    plain = {key: value.to(torch.bfloat16) for key, value in tensors(pretrained_folder).items()}
    for folder, factor in (("scaled", 200.0), ("tuned", 201.0)):
        scaled = {f"{name}_scale_inv": torch.ones(1, 1) / factor, name: (plain[name] * factor).to(torch.float8_e4m3fn)}
        shutil.copytree(pretrained_folder, tmp_path / folder)
        save_file(plain | scaled, tmp_path / folder / "model.safetensors", {"format": "pt"})
    start = tmp_path / "scaled" if base == "scaled" else pretrained_folder
    convert("delta", "make", start, tmp_path / "tuned", tmp_path / "delta")
    convert("delta", "apply", start, tmp_path / "delta", tmp_path / "again")
    assert_equal(tensors(tmp_path / "tuned"), tensors(tmp_path / "again"))
    assert tensors(tmp_path / "again")[name].dtype == torch.float8_e4m3fn


def test_the_hash_is_that_of_the_content_however_it_is_spread(
    pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    convert(pretrained_folder, tmp_path / "shards", "--shard-size", "20KB")
    assert content_hash(open_folder(pretrained_folder)) == content_hash(open_folder(tmp_path / "shards"))
    convert(pretrained_folder, tmp_path / "half", "--dtype", "bf16")
    assert content_hash(open_folder(pretrained_folder)) != content_hash(open_folder(tmp_path / "half"))
    assert content_hash({"a": lambda: torch.ones(2)}) != content_hash({"b": lambda: torch.ones(2)})


def test_another_base_and_a_damaged_delta_are_refused(
    tuned_folder: Path, pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    delta, out = tmp_path / "delta", tmp_path / "out"
    convert("delta", "make", pretrained_folder, tuned_folder, delta)
    other = tmp_path / "other"
    shutil.copytree(pretrained_folder, other)
    changed = tensors(other)
    changed["model.norm.weight"][0] += 1e-6
    save_file(changed, other / "model.safetensors", {"format": "pt"})
    assert "give the weights that it was made from" in convert("delta", "apply", other, delta, out, fails=True)
    assert "has no delta.json, so it is no delta" in convert(
        "delta", "apply", pretrained_folder, tuned_folder, out, fails=True
    )
    assert "is no Hugging Face folder" in convert("delta", "make", tmp_path, tuned_folder, out, fails=True)
    file = delta / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert "its files are damaged" in convert("delta", "apply", pretrained_folder, delta, out, fails=True)
    about = json.loads((delta / "delta.json").read_text())
    (delta / "delta.json").write_text(json.dumps(about | {"dtypes": dict.fromkeys(about["dtypes"], "save")}))
    assert "says 'save'" in convert("delta", "apply", pretrained_folder, delta, out, fails=True)
    assert not out.exists()
    assert not out.with_name("out.partial").exists()


def test_files_of_a_processor_and_of_an_objective_are_carried_and_no_other_weights(
    tuned_folder: Path, pretrained_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    beside = ("preprocessor_config.json", "processor_config.json", "value_head.safetensors")
    for name in beside[:2]:
        (tuned_folder / name).write_text(json.dumps({"of": name}))
    save_file({"value_head.weight": torch.ones(1, 32), "value_head.bias": torch.ones(1)}, tuned_folder / beside[2])
    save_file({"layers.0.weight": torch.ones(3)}, tuned_folder / "consolidated.safetensors")
    convert("delta", "make", pretrained_folder, tuned_folder, tmp_path / "delta", "--shard-size", "20KB")
    convert("delta", "apply", pretrained_folder, tmp_path / "delta", tmp_path / "again", "--shard-size", "20KB")
    for name in beside:
        assert (tmp_path / "again" / name).read_bytes() == (tuned_folder / name).read_bytes()
    assert not (tmp_path / "again/consolidated.safetensors").exists()
    (tuned_folder / "consolidated.safetensors").unlink()
    assert_equal(tensors(tuned_folder), tensors(tmp_path / "again"))
