"""What cannot be converted is refused with its cause and a way out, before a tensor is loaded or a file is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mt_train.cli.train import main as mt_train

Convert = Callable[..., str]
INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-*.safetensors"


def config(**changed: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))

    return change


def index(change: Callable[[dict[str, str]], None]) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        content = json.loads((folder / INDEX).read_text())
        change(content["weight_map"])
        (folder / INDEX).write_text(json.dumps(content))

    return do


def first(folder: Path) -> Path:
    return next(folder.glob(FIRST))


def cut(folder: Path) -> None:
    first(folder).write_bytes(first(folder).read_bytes()[:-8])


def cut_header(folder: Path) -> None:
    first(folder).write_bytes(first(folder).read_bytes()[:60])


def lengthen(folder: Path) -> None:
    first(folder).write_bytes(first(folder).read_bytes() + b"more")


def link(folder: Path) -> None:
    aside = folder.parent / "aside.safetensors"
    first(folder).rename(aside)
    (folder / first_name(folder)).symlink_to(aside)


def first_name(folder: Path) -> str:
    return min(json.loads((folder / INDEX).read_text())["weight_map"].values())


def cut_bin(folder: Path) -> None:
    tensors = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    for file in [*folder.glob("*.safetensors"), folder / INDEX]:
        file.unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-100])


def reshape(folder: Path) -> None:
    tensors = load_file(first(folder))
    name = min(name for name, value in tensors.items() if value.dim() == 2)
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, first(folder), {"format": "pt"})


def no_weights(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), folder / INDEX]:
        file.unlink()


EARLY: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "another architecture": (
        config(architectures=["RwkvForCausalLM"], model_type="rwkv"),
        ("the model type 'rwkv' is not trained here", "its layers hand a state on in a form of its own"),
    ),
    "no weights": (no_weights, ("holds no weights in a format that is read here", "llama (huggingface, meta)")),
    "a missing shard": (lambda folder: first(folder).unlink(), ("is missing or no regular file",)),
    "an index that leads elsewhere": (
        index(lambda where: where.update({"lm_head.weight": "../secret.safetensors"})),
        ("'../secret.safetensors', which is outside the folder",),
    ),
    "a link that leads elsewhere": (link, ("is a link to", "outside its folder")),
    "an index with a name too many": (
        index(lambda where: where.update({"model.strange": min(where.values())})),
        ("lacks tensors that its index lists: model.strange",),
    ),
    "an index without a map": (
        lambda folder: (folder / INDEX).write_text("{}") and None,
        ("has no weight_map",),
    ),
    "a file that is cut short": (cut, ("its header asks for", "cut short or damaged")),
    "a header that is cut short": (cut_header, ("has no header of safetensors",)),
    "a file that is too long": (lengthen, ("its header asks for",)),
    "a .bin that is cut short": (cut_bin, ("is cut short: the directory at its end is missing",)),
    "a value of another type": (config(hidden_size="wide"), ("model.dim", "'wide'")),
    "an activation that is not ours": (config(hidden_act="gelu"), ("hidden_act='gelu' (supported: 'silu')",)),
    "quantised weights": (
        config(quantization_config={"bits": 4}),
        ("quantization_config={'bits': 4} (supported: None)",),
    ),
    "rotary scaling that nobody knows": (
        config(rope_parameters=None, rope_scaling={"rope_type": "spiral", "factor": 2.0}),
        ("rotary scaling 'spiral'", "llama3"),
    ),
    "a config that is no JSON": (
        lambda folder: (folder / "config.json").write_text("{") and None,
        ("config.json", "missing or damaged"),
    ),
}


@pytest.fixture(scope="module")
def sharded_folder(pretrain: Callable[..., Path]) -> Path:
    return pretrain(shard="30KB")


@pytest.fixture
def broken_folder(sharded_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sharded_folder, tmp_path / "broken"))


@pytest.mark.parametrize("what", EARLY)
def test_a_folder_that_cannot_be_read_is_refused_before_anything_is_allocated(
    what: str, broken_folder: Path, convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, expected = EARLY[what]
    damage(broken_folder)
    for place in ("mt_tools.convert.folder.tensors_of", "mt_train.assemble.steps.take_steps"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("tensors were asked for"))
    said = convert(broken_folder, tmp_path / "out", fails=True)
    assert all(text in said for text in expected), said
    assert "unexpected" not in said
    assert not list(tmp_path.glob("out*"))
    assert mt_train(["--model", "llama", "--model.weights", str(broken_folder), "--output", str(tmp_path / "run")]) in (
        1,
        2,
    )
    assert not (tmp_path / "run").exists()


def test_tensors_that_do_not_fit_the_config_leave_nothing_behind(
    broken_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    reshape(broken_folder)
    said = convert(broken_folder, tmp_path / "out", fails=True)
    assert "1 tensors have another shape" in said
    config(num_hidden_layers=3)(broken_folder)
    assert "missing in the weights" in convert(broken_folder, tmp_path / "out", fails=True)
    assert not list(tmp_path.glob("out*"))


def test_a_source_that_is_not_there_or_needs_no_model_is_said(
    broken_folder: Path, convert: Convert, tmp_path: Path
) -> None:
    assert "does not exist; give a folder of weights, a run" in convert(tmp_path / "no", tmp_path / "out", fails=True)
    assert "no model named 'lama'. Did you mean 'llama'?" in convert(
        broken_folder, tmp_path / "out", "--model", "lama", fails=True
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.yaml").write_text("model: llama\n")
    assert "belongs to a folder of weights" in convert(
        tmp_path / "run", tmp_path / "out", "--model", "llama", fails=True
    )
    assert "holds no checkpoint" in convert(tmp_path / "run", tmp_path / "out", fails=True)
    said = convert("resize-vocab", tmp_path / "run", tmp_path / "out", "--add-tokens", "a", fails=True)
    assert "is a run; write it into a folder first" in said
