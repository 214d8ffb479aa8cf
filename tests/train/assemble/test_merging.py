"""Saved adapters under a run's own, and those that it trains on from, against peft's own models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from mt_core.errors import WeightsError
from mt_core.nn import Batch, TrainModel
from mt_tools.cli.export import main as mt_export
from mt_tools.cli.generate import main as mt_generate
from mt_train import load_adapters, load_run
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.load import load_model
from mt_train.assemble.merging import merged_weights
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.store import find
from mt_train.cli.train import main as mt_train
from mt_train.plugins.resolve import resolve

IDS = torch.arange(40)[None]
TRAIN = ("--dataset", "demo", "--train.sequence-len", "32", "--train.micro-batch-size", "2")
QUIET = ("--eval.samples", "0", "--data.read-rows", "4", "--data.eval", "none")
SHAPE = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
PEFT: dict[str, peft.PeftConfig] = {
    "lora": peft.LoraConfig(r=4, lora_alpha=5, target_modules=["q_proj", "up_proj"], init_lora_weights=False),
    "rslora": peft.LoraConfig(
        r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    ),
    "dora": peft.LoraConfig(
        r=2, lora_alpha=8, use_dora=True, target_modules=["q_proj", "down_proj"], init_lora_weights=False
    ),
    "ia3": peft.IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], init_ia3_weights=False
    ),
    "loha": peft.LoHaConfig(r=3, alpha=50, target_modules=["q_proj"], init_weights=False),
    "lokr": peft.LoKrConfig(r=3, alpha=5, target_modules=["q_proj"], init_weights=False),
    "oft": peft.OFTConfig(oft_block_size=8, target_modules=["q_proj"], init_weights=False),
    "hra": peft.HRAConfig(r=4, target_modules=["o_proj"], init_weights=False),
    "vera": peft.VeraConfig(r=8, target_modules=["q_proj"], init_weights=False),
}
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base``, and an adapter of each method with values that change its output."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder / "base")
    for name, config in PEFT.items():
        torch.manual_seed(1)
        model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "base"), config)
        for each in model.parameters():
            if each.requires_grad:
                each.data += 0.1 * torch.randn_like(each)
        model.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def train(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """``train(words …)``: a run of two steps over the base."""
    runs = tmp_path_factory.mktemp("runs")

    def run(*words: object, steps: int = 2, lr: str = "1e-2") -> Path:
        out = runs / f"run-{len(list(runs.iterdir()))}"
        argv = ["--model", "llama", "--model.weights", folders / "base", *TRAIN, *QUIET, *words]
        argv += ["--train.steps", steps, "--optimizer.lr", lr, "--output", out]
        assert mt_train([str(word) for word in argv]) == 0
        return out

    return run


def logits(model: TrainModel) -> Tensor:
    zeros = torch.zeros_like(IDS)
    with torch.no_grad():
        return model.head(model(Batch(IDS, zeros, torch.arange(IDS.shape[1])[None], zeros)))  # type: ignore[no-any-return]


def ours(
    folders: Path, *merged: str | Path, weights: str | Path | None = None, said: list[str] | None = None, **slots: Any
) -> Tensor:
    """Logits of step 0, with folders merged in order, and with a run's adapter that begins with another one's values."""
    model = {"name": "llama", "weights": str(folders / "base"), "adapters": [str(folders / each) for each in merged]}
    raw: dict[str, Any] = {"model": model, "train": {"sequence_len": 2}, **slots}
    if weights is not None:
        raw["adapter"] = {"weights": str(folders / weights), **slots.get("adapter", {})}
    return logits(
        load_model(Parts.of(resolve(raw, discover_plugins())), None, (said if said is not None else []).append)
    )


def of_run(run: Path) -> Tensor:
    return logits(load_run(run).model)


def theirs(folders: Path, *merged: str, over: str | None = None) -> Tensor:
    """Logits of peft: each merged and unloaded, in order; then one that is not merged."""
    model = AutoModelForCausalLM.from_pretrained(folders / "base")
    for name in merged:
        model = peft.PeftModel.from_pretrained(model, folders / name).merge_and_unload()
    model = model if over is None else peft.PeftModel.from_pretrained(model, folders / over)
    with torch.no_grad():
        return model.eval()(IDS).logits  # type: ignore[no-any-return]


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def edit(folder: Path, **change: Any) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | change))


@pytest.mark.parametrize("name", PEFT)
def test_a_merged_adapter_gives_the_logits_of_pefts_merge_and_unload(folders: Path, name: str) -> None:
    want = theirs(folders, name)
    assert (want - theirs(folders)).abs().max() > 1e-3, "it changes the output"
    close(ours(folders, name), want)


@pytest.mark.parametrize("name", PEFT)
def test_training_on_from_an_adapter_begins_with_pefts_logits(folders: Path, name: str) -> None:
    close(ours(folders, weights=name), theirs(folders, over=name))


def test_adapters_are_merged_in_order(folders: Path) -> None:
    one, other = ours(folders, "lora", "dora"), ours(folders, "dora", "lora")
    close(one, theirs(folders, "lora", "dora"))
    close(other, theirs(folders, "dora", "lora"))
    assert (one - other).abs().max() > 1e-4, "DoRA scales what is below it"
    close(ours(folders, *PEFT), theirs(folders, *PEFT))


def test_an_adapter_is_merged_under_one_that_is_trained_on(folders: Path) -> None:
    close(ours(folders, "dora", weights="lora"), theirs(folders, "dora", over="lora"))


def test_a_quantizer_stores_merged_weights(folders: Path, tmp_path: Path) -> None:
    """Against the folder that peft writes of the merged model, quantized in the same way."""
    shutil.copytree(folders / "lora", tmp_path / "lora")
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folders / "base"), folders / "lora")
    model.merge_and_unload().save_pretrained(tmp_path / "base")
    slots = {"quantizer": {"name": "int8"}, "adapter": {"name": "lora"}}
    quantized = ours(folders, "lora", **slots)
    close(quantized, ours(tmp_path, **slots))
    assert (quantized - ours(folders, "lora")).abs().max() > 1e-4, "it is quantized"


def test_a_quantized_base_is_under_an_adapter_that_is_trained_on(folders: Path, tmp_path: Path) -> None:
    slots = {"quantizer": {"name": "nf4"}}
    with_values = ours(folders, weights="lora", **slots)
    shutil.copytree(folders / "base", tmp_path / "base")
    shutil.copytree(folders / "lora", tmp_path / "lora")
    raw = load_file(tmp_path / "lora/adapter_model.safetensors")
    zeros = {name: torch.zeros_like(each) for name, each in raw.items()}
    save_file(zeros, tmp_path / "lora/adapter_model.safetensors")
    without = ours(tmp_path, weights="lora", **slots)
    change = (with_values - without).norm() / (theirs(folders, over="lora") - theirs(folders)).norm()
    assert 0.7 < change < 1.4, "about what it changes of the weights in full"


def test_runs_checkpoints_and_exported_folders_are_adapters_too(folders: Path, train: Train, tmp_path: Path) -> None:
    for words in (("lora", "--adapter.rank", 3, "--train.enable", "[model.norm.weight]"), ("pissa",), ("dora",)):
        for trained_only in ("false", "true"):
            run = train("--adapter", *words, "--checkpoint.trainable-only", trained_only)
            want = of_run(run)
            assert (want - theirs(folders)).abs().max() > 1e-3
            out = tmp_path / f"{words[0]}-{trained_only}"
            assert mt_export(["--run", str(run), "--output", str(out)]) == 0
            for source in (run, find(run), out):
                close(ours(folders, source), want)
                close(ours(folders, weights=source), want)


def test_a_run_goes_on_from_another_one_and_over_it(folders: Path, train: Train) -> None:
    """SFT with LoRA, then both ways on: no step changes nothing, and steps change only what is trained."""
    first = train("--adapter", "lora", "--adapter.rank", "4")
    on = train("--adapter.weights", first, lr="1e-9")
    over = train("--model.adapters", first, "--adapter", "lora", lr="1e-9")
    for run in (on, over):
        close(of_run(run), of_run(first))
    assert read_manifest(find(on))["config"]["adapter"]["rank"] == 4
    about = json.loads((over / "about.json").read_text())["adapters"]
    assert [each["use"] for each in about] == ["merged"]
    assert "model-00001.safetensors" in about[0]["sha256"]
    assert json.loads((on / "about.json").read_text())["adapters"][0]["use"] == "trained on"


def test_a_run_that_trains_on_needs_the_folder_no_more(folders: Path, train: Train, tmp_path: Path) -> None:
    shutil.copytree(folders / "lora", tmp_path / "lora")
    words = ("--adapter.weights", tmp_path / "lora", "--checkpoint.trainable-only", "true", "--schedule", "constant")
    run, whole = train(*words), train(*words, steps=4)
    shutil.rmtree(tmp_path / "lora")
    assert mt_train(["--resume", str(run), "--train.steps", "4"]) == 0
    assert mt_generate(["--run", str(run), "--prompt", "Paris", "--max-new-tokens", "2"]) == 0
    assert torch.equal(of_run(run), of_run(whole))


@pytest.mark.parametrize("more", ["false", "true"], ids=["whole", "trained-only"])
def test_a_resumed_run_over_merged_adapters_equals_one_that_was_not_stopped(
    folders: Path, train: Train, more: str
) -> None:
    words = ("--model.adapters", f"{folders / 'lora'},{folders / 'dora'}", "--adapter", "lora")
    words += ("--checkpoint.trainable-only", more)
    words += ("--schedule", "constant")
    whole, stopped = train(*words, steps=4), train(*words)
    assert mt_train(["--resume", str(stopped), "--train.steps", "4"]) == 0
    files = [find(run) / "model/model-00001.safetensors" for run in (whole, stopped)]
    one, other = map(load_file, files)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(of_run(whole), of_run(stopped))


def test_a_checkpoint_of_trained_weights_is_refused_over_an_adapter_that_has_changed(
    folders: Path, train: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folders / "lora", tmp_path / "lora")
    run = train("--model.adapters", tmp_path / "lora", "--adapter", "lora", "--checkpoint.trainable-only", "true")
    assert set(read_manifest(find(run))["base"]) >= {"adapters/1/adapter_config.json", "model.safetensors"}
    edit(tmp_path / "lora", lora_alpha=6)
    assert mt_train(["--resume", str(run), "--train.steps", "4"]) != 0
    said = capfd.readouterr().err
    assert "the weights under them have changed since: adapters/1/adapter_config.json" in said


def test_a_merged_run_has_all_adapters_in_its_folder(folders: Path, train: Train, tmp_path: Path) -> None:
    run = train("--model.adapters", f"{folders / 'lora'},{folders / 'dora'}", "--adapter", "lora")
    assert mt_export(["--run", str(run), "--merge", "--output", str(tmp_path / "merged")]) == 0
    with torch.no_grad():
        close(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(IDS).logits, of_run(run))
    assert mt_export(["--run", str(run), "--as-lora", "--output", str(tmp_path / "alone")]) == 0
    close(ours(folders, "lora", "dora", tmp_path / "alone"), of_run(run))


def test_an_exported_adapter_over_merged_ones_names_no_base_and_is_refused_over_another(
    folders: Path, train: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train("--model.adapters", folders / "lora", "--adapter", "lora", "--checkpoint.trainable-only", "true")
    assert mt_export(["--run", str(run), "--output", str(tmp_path / "out")]) == 0
    assert "the adapter stands over weights with" in capfd.readouterr().err
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["base_model_name_or_path"] is None
    close(ours(folders, "lora", weights=tmp_path / "out"), of_run(run))
    close(ours(folders, "lora", tmp_path / "out"), of_run(run))
    argv = ["--model", "llama", "--weights", str(folders / "base"), "--adapter-folder", str(tmp_path / "out")]
    assert mt_generate([*argv, "--prompt", "x"]) != 0
    assert "Its run has merged adapters under it" in capfd.readouterr().err
    with pytest.raises(WeightsError, match="was trained on other weights than"):
        load_adapters({"it": run}, weights=folders / "base")
    argv = ["--weights", str(folders / "base"), "--adapter-folder", str(run), "--prompt", "x"]
    assert mt_generate(argv) != 0
    assert "was trained on other weights than" in capfd.readouterr().err


@pytest.mark.parametrize("only", ["true", "false"])
def test_a_run_is_an_adapter_over_the_weights_that_it_was_trained_on(
    folders: Path, train: Train, only: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is the run's own, whether it has saved its adapter alone or all weights."""
    run, said = train("--adapter", "lora", "--checkpoint.trainable-only", only), []
    for source in (["--run", run], ["--weights", folders / "base", "--adapter-folder", run]):
        capsys.readouterr()
        words = [*source, "--prompt", "What is", "--greedy", "--max-new-tokens", "8"]
        assert mt_generate([*map(str, words)]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_an_adapter_that_was_trained_without_those_before_it_is_merged_with_a_notice(
    folders: Path, train: Train
) -> None:
    said: list[str] = []
    run = train("--adapter", "lora", "--checkpoint.trainable-only", "true")
    ours(folders, "dora", run, said=said)
    assert any("was trained over these weights, and not over the adapters" in text for text in said)
    whole = train("--adapter", "lora", "--checkpoint.trainable-only", "false")
    close(ours(folders, "dora", whole), ours(folders, "dora", run))
    said.clear()
    ours(folders, "lora", "lora", said=said)
    assert any("2 times, and it is merged as often" in text for text in said)


@pytest.mark.parametrize("kept", ["false", "true"], ids=["whole", "trained-only"])
def test_a_run_over_other_weights_is_refused_by_hashes_or_by_the_weights_in_its_checkpoint(
    folders: Path, train: Train, kept: str
) -> None:
    run = train("--model.adapters", folders / "lora", "--adapter", "lora", "--checkpoint.trainable-only", kept)
    close(ours(folders, "lora", weights=run), of_run(run))
    close(ours(folders, "lora", run), of_run(run))
    cases: list[tuple[tuple[str | Path, ...], Path | None]] = [
        ((), run),
        (("dora",), run),
        ((run,), None),
        (("dora", run), None),
    ]
    for merged, weights in cases:
        with pytest.raises(WeightsError, match=r"was trained (over|on) other weights"):
            ours(folders, *merged, weights=weights)


def test_an_overlay_is_under_an_adapter_where_it_has_more_than_the_adapters_values(
    folders: Path, train: Train, tmp_path: Path
) -> None:
    """A run that began with another one's checkpoint stands on the base alone; one over another weight of the base does not."""
    first = train("--adapter", "lora", "--adapter.rank", "4")
    run = train("--adapter", "lora", "--adapter.rank", "4", "--model.overlay", find(first) / "model")
    close(ours(folders, weights=run), of_run(run))
    close(ours(folders, run), of_run(run))
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({name: load_file(folders / "base/model.safetensors")[name] + 0.1}, tmp_path / "overlay.safetensors")
    run = train("--adapter", "lora", "--adapter.rank", "4", "--model.overlay", tmp_path / "overlay.safetensors")
    with pytest.raises(WeightsError, match="was trained on other weights"):
        ours(folders, weights=run)


def test_weights_that_a_run_has_rewritten_go_over_nothing_else(folders: Path, train: Train) -> None:
    run = train("--adapter", "pissa", "--adapter.rank", "2", "--checkpoint.trainable-only", "false")
    close(ours(folders, run), of_run(run))
    with pytest.raises(WeightsError, match="and not over which adapters; put it first"):
        ours(folders, "lora", run)
    run = train("--adapter", "pissa", "--adapter.rank", "2", "--checkpoint.trainable-only", "true")
    with pytest.raises(WeightsError, match="with other adapters merged under them"):
        ours(folders, "lora", run)


def test_a_merged_weight_is_made_when_it_is_read_and_no_other_one_is(folders: Path) -> None:
    model = {
        "name": "llama",
        "weights": str(folders / "base"),
        "adapters": [str(folders / "lora"), str(folders / "dora")],
    }
    parts = Parts.of(resolve({"model": model, "train": {"sequence_len": 2}}, discover_plugins()))
    read: list[str] = []

    def load(name: str, value: Tensor) -> Tensor:
        read.append(name)
        return value

    values = load_file(folders / "base/model.safetensors")
    source = {name: partial(load, name, value) for name, value in values.items()}
    merged = merged_weights(parts, source, {*source, "lm_head.weight"}, print)
    assert not read, "nothing is read before it is asked for"
    name = "model.layers.1.self_attn.q_proj.weight"
    assert not torch.equal(merged[name](), values[name])
    assert read == [name]
