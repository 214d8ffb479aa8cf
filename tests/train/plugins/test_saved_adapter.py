"""Bad input: each is one message that says what, and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from mt_train.cli.train import main as mt_train

SHAPE = {"vocab_size": 259, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SHAPE |= {"num_key_value_heads": 1, "max_position_embeddings": 64}
TRAIN = ("--dataset", "demo", "--train.steps", "2", "--train.sequence-len", "32", "--train.micro-batch-size", "2")
QUIET = ("--eval.samples", "0", "--data.read-rows", "4")
LORA = ("--adapter", "lora")


@pytest.fixture(scope="module")
def made_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a LoRA over it (``a``), one over a wider base (``wide``), and runs of a full training and of a mixture."""
    folder = tmp_path_factory.mktemp("made")
    for name, width in (("base", 32), ("other", 64)):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_size=width))
        model.save_pretrained(folder / name)
        config = peft.LoraConfig(r=4, lora_alpha=5, target_modules=["q_proj"], init_lora_weights=False)
        peft.get_peft_model(model, config).save_pretrained(folder / ("a" if width == 32 else "wide"))
    for name, more in (("full", ()), ("goat", ("--adapter.rank", "2"))):
        argv = ["--model", "llama", "--model.weights", str(folder / "base"), *TRAIN, *QUIET, "--adapter", name, *more]
        assert mt_train([*argv, "--output", str(folder / name)]) == 0
    return folder


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def pickle_weights(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    torch.save(load_file(file), folder / "adapter_model.bin")
    file.unlink()


def shorten(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def rename(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({name.replace("layers.1", "layers.7"): each for name, each in load_file(file).items()}, file)


def other_method(folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    write(folder / "adapter_config.json", {**config, "peft_type": "FOURIERFT"})


def odd_options(folder: Path) -> None:
    write(folder / "adapter_config.json", {"mt_adapter": {"name": "lora", "options": {"rank": "many"}}})


def odd_base(folder: Path) -> None:
    write(folder / "mt_adapter.json", {"base": ["model.safetensors"]})


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no folder": (shutil.rmtree, "does not exist; give the folder of an adapter, or a run"),
    "no adapter": (
        lambda folder: (folder / "adapter_config.json").unlink(),
        "holds no adapter: no adapter_config.json",
    ),
    "no tensors": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "and none of adapter_model"),
    "a pickle": (pickle_weights, "adapter_model.bin is a pickle, which can execute what is in it"),
    "damaged": (shorten, "it is cut short or damaged"),
    "other modules": (rename, "for which an adapter here has no place"),
    "no JSON": (lambda folder: (folder / "adapter_config.json").write_text("{"), "cannot read"),
    "another method": (other_method, "holds an adapter FOURIERFT of peft, which no installed adapter reads"),
    "odd hashes": (odd_base, "base in what mt-export wrote is ['model.safetensors']; it is damaged"),
    "odd options": (odd_options, "rank"),
}


def refusal(capfd: pytest.CaptureFixture[str], made: Path, *words: object, dry: bool = True) -> str:
    argv = [
        "--model",
        "llama",
        "--model.weights",
        made / "base",
        *TRAIN,
        *QUIET,
        *words,
        *(["--dry-run"] if dry else []),
    ]
    capfd.readouterr()
    assert mt_train([*map(str, argv), "--output", "none"]) != 0
    said = capfd.readouterr().err
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("key", ["--model.adapters", "--adapter.weights"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_adapter_is_one_clear_message(
    made_folders: Path, tmp_path: Path, name: str, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made_folders / "a", tmp_path / "a")
    change, message = CHANGES[name]
    change(tmp_path / "a")
    words = (key, tmp_path / "a", *(LORA if key == "--model.adapters" else ()))
    said = refusal(capfd, made_folders, *words)
    if name == "other modules":
        assert "layers.7" in said
    else:
        assert message in said
    assert str(tmp_path / "a") in said or name == "odd options"


def test_a_method_that_is_typed_does_not_hide_a_missing_folder(
    made_folders: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (*LORA, "--adapter.weights", tmp_path / "gone")
    assert "gone does not exist" in refusal(capfd, made_folders, *words)
    assert "gone does not exist" in refusal(capfd, made_folders, *words, dry=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model.adapters", "wide", *LORA), "is an adapter of another model: "),
        (("--adapter.weights", "wide"), "is an adapter of another model: "),
        (("--model.adapters", "goat", *LORA), "holds the adapter goat, which no weights can stand for"),
        (("--model.adapters", "full", *LORA), "trained all of its model, which is no adapter"),
        (("--adapter.weights", "full"), "trained all of its model, which is no adapter"),
        (("--model.adapters", "a,gone", *LORA), "gone does not exist"),
        (("--adapter.weights", "a", "--adapter.rank", "8"), "r is 4 there and 8 in the run"),
        (("--adapter.weights", "a", "--adapter.alpha", "8"), "lora_alpha is 5 there and 8 in the run"),
        (("--adapter.weights", "a", "--adapter.targets", "[v_proj]"), "the run has no place for"),
        (("--adapter.weights", "a", "--adapter", "ia3"), "peft_type is 'LORA' there and 'IA3' in the run"),
        (
            ("--adapter.weights", "a", "--adapter", "goat", "--adapter.rank", "2"),
            "holds an adapter LORA of peft, and the run's is goat",
        ),
        (("--adapter.weights", "a", "--model.overlay", "a"), "a run's adapter begins with one; keep one of them"),
        (("--adapter.weights", "[a]"), "adapter.weights"),
        (("--adapter.weight", "a"), "adapter.weight"),
    ],
)
def test_an_adapter_that_does_not_fit_says_what_differs(
    made_folders: Path, words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    key = {"--model.adapters", "--adapter.weights", "--model.overlay"}
    placed = [
        ",".join(str(made_folders / each) for each in word.split(",")) if before in key and word[0] != "[" else word
        for before, word in zip(("", *words), words, strict=False)
    ]
    assert message in refusal(capfd, made_folders, *placed)


def test_options_come_from_the_folder_with_their_origin_and_what_is_typed_wins(
    made_folders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "--model",
        "llama",
        "--model.weights",
        str(made_folders / "base"),
        "--adapter.weights",
        str(made_folders / "a"),
    ]
    assert mt_train([*argv, *TRAIN, "--adapter.dropout", "0.1", "--print-config"]) == 0
    shown = {line.partition(":")[0].strip(): line for line in capfd.readouterr().out.splitlines()}
    assert "rank: 4" in shown["rank"]
    assert f"the adapter in {made_folders / 'a'}" in shown["rank"]
    assert "alpha: 5" in shown["alpha"]
    assert "dropout: 0.1" in shown["dropout"]
    assert "command line" in shown["dropout"]
