"""Configs on top of each other: files, what they include, the command line; and where a fault stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mt_core.errors import UsageError
from mt_train.cli.train import main
from mt_train.config.layers import MOST_FILES, Layer, Layers, read_layers
from mt_train.plugins.modules import load_plugins

KINDS = load_plugins().kinds


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def read(*paths: Path) -> Layers:
    return Layers.of([layer for path in paths for layer in read_layers(path)], KINDS)


def test_a_file_wins_over_what_it_includes_and_a_later_file_over_an_earlier_one(tmp_path: Path) -> None:
    write(
        tmp_path, base="train: {steps: 1, seed: 1}\noptimizer: {lr: 1.0}", one="include: [base.yaml]\ntrain: {steps: 2}"
    )
    write(tmp_path, two="optimizer: {lr: 3.0}")
    found = read(tmp_path / "one.yaml", tmp_path / "two.yaml")
    assert found.raw == {"train": {"steps": 2, "seed": 1}, "optimizer": {"lr": 3.0}}
    assert {key: Path(name).stem for key, name in found.origins.items()} == {
        "train.steps": "one",
        "train.seed": "base",
        "optimizer.lr": "two",
    }


def test_files_are_included_from_the_folder_of_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    write(tmp_path / "parts" / "deep", last="train: {seed: 4}")
    write(tmp_path / "parts", middle="include: deep/last.yaml")
    assert read(write(tmp_path, top="include: [parts/middle.yaml]") / "top.yaml").raw == {"train": {"seed": 4}}


def test_options_of_a_component_that_gave_way_have_no_origin(tmp_path: Path) -> None:
    path = write(tmp_path, base="optimizer: {name: adamw, lr: 1.0}") / "base.yaml"
    found = Layers.of([*read_layers(path), Layer("command line", {"optimizer": {"name": "muon"}})], KINDS)
    assert found.raw == {"optimizer": {"name": "muon"}}
    assert found.origins == {"optimizer.name": "command line"}


@pytest.mark.parametrize(
    ("slot", "options", "name"),
    [
        ("model", {"weights": "my-llama"}, "llama"),
        ("adapter", {"weights": "runs/one"}, "lora"),
        ("dataset", {"path": "rows.jsonl"}, "jsonl"),
        ("tokenizer", {"path": "tokenizer.json"}, "huggingface"),
        ("optimizer", {"lr": 1.0}, "muon"),
    ],
)
def test_options_that_a_file_gives_no_component_are_those_of_the_one_that_is_named_on_top(
    slot: str, options: dict[str, object], name: str, tmp_path: Path
) -> None:
    path = write(tmp_path, base=json.dumps({slot: options})) / "base.yaml"
    found = Layers.of([*read_layers(path), Layer("command line", {slot: {"name": name}})], KINDS)
    assert found.raw == {slot: {**options, "name": name}}
    over = Layers.of([Layer("a", {slot: "another"}), *read_layers(path), Layer("b", {slot: name})], KINDS)
    assert over.raw == {slot: {"name": name}}, "the file's options were those of another"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("include: [me.yaml]", "includes itself"),
        ("include: [other.yaml]", "includes itself"),
        ("include: {a: 1}", "must be a list of files"),
        ("include: [3]", "must be a list of files"),
        ("include: [nowhere.yaml]", "cannot read the config"),
        (f"include: [{', '.join(['leaf.yaml'] * MOST_FILES)}]", "more than"),
    ],
)
def test_what_cannot_be_included_is_refused(text: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, me=text, other="include: [me.yaml]", leaf="train: {seed: 1}")
    with pytest.raises(UsageError, match=said):
        read(tmp_path / "me.yaml")


def test_a_fault_of_a_file_is_told_with_its_line_and_one_of_the_command_line_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, base="# about\nadapter:\n  name: lora\n  rankk: 3\ntrain: {steps: 1}\n") / "base.yaml"
    assert main(["--config", str(path), "--model", "llama", "--train.stepps", "3", "--print-config"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any("adapter.rankk" in line and line.endswith(f"({path}, line 4)") for line in lines)
    assert any("train.stepps" in line and "line" not in line for line in lines)


def test_a_fault_of_a_json_file_that_is_no_yaml_is_told_with_the_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """YAML has no keys of more than 1,024 letters in braces."""
    file = tmp_path / "long.json"
    file.write_text(json.dumps({"model": "llama", "train": {"k" * 1100: 1, "steps": 0}}))
    assert main(["--config", str(file), "--print-config"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"train.steps: should be greater than 0, got 0. ({file})" in said
    assert "unexpected" not in said


def test_the_origin_of_each_value_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, mine="train: {seed: 7}") / "mine.yaml"
    words = [
        "--recipe",
        "lora",
        "--config",
        str(path),
        "--model",
        "llama",
        "--adapter.rank",
        "4",
        "--dataset.path",
        "x.jsonl",
    ]
    assert main([*words, "--print-config"]) == 0
    lines = {
        line.partition("#")[0].strip(): line.partition("#")[2].strip() for line in capsys.readouterr().out.splitlines()
    }
    assert lines["rank: 4"] == "command line"
    assert lines["alpha: 32.0"] == "recipe lora"
    assert lines["seed: 7"] == str(path)
    assert lines["lr: 0.0002"] == "recipe lora"
    assert lines["weight_decay: 0.0"].endswith("sft.yaml")
