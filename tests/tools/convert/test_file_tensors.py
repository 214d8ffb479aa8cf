"""A family whose files have other names and shapes than its model is written, read and trained on again bit for bit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "families"))

import counting_family

from mt_core import ComponentError, WeightsError
from mt_core.weights import Loaders, open_folder
from mt_tools import save_folder
from mt_tools.cli.convert import main as mt_convert
from mt_tools.cli.export import main as mt_export
from mt_tools.cli.generate import main as mt_generate
from mt_tools.convert.folder import convert
from mt_tools.convert.source import Source, open_source
from mt_train.assemble.discovery import discover_plugins
from mt_train.checkpoint.store import find
from mt_train.checkpoint.tensors import open_model
from mt_train.cli.train import main as mt_train

PLUGIN = {
    "METADATA": "Metadata-Version: 2.1\nName: counting\nVersion: 0.1.0\n",
    "entry_points.txt": "[mt_core.plugins]\ncounting = counting_family\n",
}
SMALL = ["--data.read-rows", "4", "--data.eval", "none", "--train.sequence-len", "32", "--train.micro-batch-size", "2"]
FUSED, HALVES = (
    "model.layers.0.gate_up_proj.weight",
    ["model.layers.0.gate_proj.weight", "model.layers.0.up_proj.weight"],
)
BALANCE, SCORE = "model.layers.1.balance", "model.layers.1.score_bias"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The family is a plugin of this process."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "counting-0.1.0.dist-info").mkdir()
    for name, content in PLUGIN.items():
        (folder / "counting-0.1.0.dist-info" / name).write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def run(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps in bf16, whose kept parameters are in fp32."""
    folder = tmp_path_factory.mktemp("run") / "run"
    words = ["--model", "counting", "--model.rate", "0.001", "--train.dtype", "bf16", "--train.steps", "3"]
    assert mt_train([*words, *SMALL, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "folder"
    assert mt_convert([str(run), str(out), "--shard-size", "20KB"]) == 0
    return out


@pytest.fixture(scope="module")
def lora(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over the folder, whose checkpoints hold what is trained alone."""
    out = tmp_path_factory.mktemp("lora") / "run"
    words = ["--model.weights", str(folder), "--model.rate", "0.25", "--adapter", "lora", "--train.steps", "2"]
    assert mt_train([*words, *SMALL, "--output", str(out)]) == 0
    assert mt_train(["--resume", str(out), "--train.steps", "3"]) == 0
    return out


def values(loaders: Any) -> dict[str, Tensor]:
    return {name: load() for name, load in loaders.items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first
    )


def test_a_run_is_written_under_the_names_and_in_the_shapes_of_the_files(run: Path, folder: Path) -> None:
    model, files = values(open_model(find(run) / "model")), values(open_folder(folder))
    assert FUSED in model
    assert FUSED not in files
    assert torch.equal(torch.cat([files[half] for half in HALVES]), model[FUSED])
    assert torch.equal(files["model.layers.0.down_proj.stored"].T, model["model.layers.0.down_proj.weight"])
    assert torch.equal(files[SCORE], model[BALANCE])
    family = discover_plugins(()).get("model", "counting").component
    read = values(counting_family.read(folder, family.config(vocab_size=259, max_seq_len=256)))
    assert same(read, model)


def test_shards_are_of_the_size_of_what_is_in_them(folder: Path) -> None:
    """A fused tensor alone would be larger than the limit; its halves share a file with others, and none is beyond it."""
    sizes = {path.name: sum(each.nbytes for each in load_file(path).values()) for path in folder.glob("*.safetensors")}
    assert len(sizes) > 1
    assert max(sizes.values()) <= 20_000
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert index["weight_map"].keys() == values(open_folder(folder)).keys()


def test_a_folder_is_converted_bit_for_bit_and_no_dtype_rounds_what_is_kept(folder: Path, tmp_path: Path) -> None:
    assert mt_convert([str(folder), str(tmp_path / "same")]) == 0
    assert same(values(open_folder(folder)), values(open_folder(tmp_path / "same")))
    assert mt_convert([str(folder), str(tmp_path / "half"), "--dtype", "fp16"]) == 0
    half = values(open_folder(tmp_path / "half"))
    assert {name for name, each in half.items() if each.dtype != torch.float16} == {
        f"model.layers.{block}.{kept}" for block in (0, 1) for kept in ("score_bias", "seen")
    }
    assert torch.equal(half[SCORE], values(open_folder(folder))[SCORE])


def test_what_a_model_changes_is_in_the_checkpoint_and_in_the_exports_of_an_adapter(
    lora: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, before = values(open_model(find(lora) / "model")), values(open_folder(folder))[SCORE]
    assert FUSED not in saved, "a checkpoint of what is trained"
    assert not torch.equal(saved[BALANCE], before)
    assert float(saved["model.layers.0.seen"]) > float(values(open_folder(folder))["model.layers.0.seen"])
    assert mt_export(["--run", str(lora), "--merge", "--output", str(tmp_path / "merged")]) == 0
    merged = values(open_folder(tmp_path / "merged"))
    assert torch.equal(merged[SCORE], saved[BALANCE])
    assert not torch.equal(merged[HALVES[0]], values(open_folder(folder))[HALVES[0]])
    assert mt_export(["--run", str(lora), "--output", str(tmp_path / "adapter")]) == 0
    assert "has also trained model.layers.0.balance" in capsys.readouterr().err
    words = ["--prompt", "The", "--max-new-tokens", "8", "--greedy"]
    assert mt_generate(["--run", str(lora), *words]) == 0
    said = capsys.readouterr().out
    assert mt_generate(["--weights", str(folder), "--adapter", str(tmp_path / "adapter"), *words]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("words", [("--as-lora",), ("--merge", "--run", "{run}:0.5")])
def test_an_adapter_alone_does_not_stand_for_what_the_model_has_changed(
    words: tuple[str, ...], lora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    further = [word.format(run=lora) for word in words]
    assert mt_export(["--run", str(lora), "--output", str(tmp_path / "out"), *further]) == 2
    assert "has changed model.layers.0.balance, model.layers.0.seen" in capsys.readouterr().err


def test_a_tensor_of_another_shape_than_the_model_is_refused(folder: Path, tmp_path: Path) -> None:
    loaders = open_folder(folder)
    short = {name: (lambda load=load: load()[:3]) if name == HALVES[1] else load for name, load in loaders.items()}
    save_folder(tmp_path / "short", short, json.loads((folder / "config.json").read_text()))
    source = open_source(str(tmp_path / "short"), discover_plugins(()))
    with pytest.raises(
        WeightsError,
        match=r"model.layers.0.gate_up_proj.weight has another shape: it is \(35, 16\) and the config says \(64, 16\)",
    ):
        convert(source, tmp_path / "out", say=lambda text: None)


def test_a_tensor_that_a_format_leaves_out_is_an_error_of_its_plugin(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(str(folder), discover_plugins(()))

    def forgets(config: Any, loaders: Loaders) -> Loaders:
        return {name: load for name, load in loaders.items() if "gate_up" not in name}

    object.__setattr__(source, "writer", replaced(source, forgets))
    with pytest.raises(ComponentError, match=r"written\(\) of the family counting leaves model.layers.0.gate_up_proj"):
        convert(source, tmp_path / "out", say=lambda text: None)
    assert not (tmp_path / "out").exists()


def replaced(source: Source, written: Callable[[Any, Loaders], Loaders]) -> Any:
    from dataclasses import replace

    return replace(source.writer, written=written)
