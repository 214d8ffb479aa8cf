"""Adapters as peft reads and writes them, over transformers' model; and merged.

Logits are compared to 1e-5: both compute in fp32, in another order.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapter_folders import IDS, TRAIN, close, make_adapter, of_folder, of_run, ours, theirs
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from mt_core import UsageError, WeightsError
from mt_core.adapters import adapted_layers
from mt_tools.cli.convert import main as mt_convert
from mt_tools.cli.eval import main as mt_eval
from mt_tools.cli.generate import main as mt_generate
from mt_tools.convert.adapter_merge import merge
from mt_tools.convert.publish import files_of, refuse_private
from mt_tools.convert.source import open_source
from mt_train import load_adapters, load_run
from mt_train.assemble.discovery import discover_plugins
from mt_train.checkpoint.store import find
from mt_train.cli.train import main as mt_train

PATTERNS = ("--adapter.ranks", "{mlp.up_proj: 2}", "--adapter.alphas", "{layers.1.self_attn.q_proj: 3}")
NAMES = {
    "a": ("lora", "--adapter.rank", "4", "--adapter.rslora", "true", *PATTERNS),
    "b": ("lora-fa", "--train.seed", "5"),
}

Export = Callable[..., str]


@pytest.fixture(scope="session")
def runs(train: Callable[..., Path]) -> dict[str, Path]:
    return {name: train("--adapter", *words) for name, words in NAMES.items()}


def made_by_peft(base: Path, out: Path, **config: Any) -> Tensor:
    given = peft.LoraConfig(
        **{"r": 4, "lora_alpha": 5, "target_modules": ["q_proj"], "init_lora_weights": False, **config}
    )
    return make_adapter(base, out, given)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("error:Unexpected keyword:UserWarning")
def test_peft_loads_what_was_exported_with_the_logits_of_the_run_and_so_do_we(
    name: str, runs: dict[str, Path], pretrained_folder: Path, export: Export, tmp_path: Path
) -> None:
    said = export("--run", runs[name], "--output", tmp_path / "out")
    assert f"adapter {NAMES[name][0]} (LORA)" in said
    want = of_run(runs[name])
    assert (want - theirs(pretrained_folder)).abs().max() > 1e-2
    close(theirs(pretrained_folder, tmp_path / "out"), want)
    close(of_folder(pretrained_folder, tmp_path / "out"), want)
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None, "a path of this machine is no name"
    assert config["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    assert "is not empty" in export("--run", runs[name], "--output", tmp_path / "out", fails=True)
    card = (tmp_path / "out/README.md").read_text()
    assert "library_name: peft\n" in card
    assert f"- trained: 2 steps, objective pretrain, dataset demo, adapter {NAMES[name][0]}\n" in card
    assert "mt-plugin-llama 0.1.0" in card
    refuse_private(tmp_path / "out", files_of(tmp_path / "out"), [pretrained_folder, runs[name]])


def test_an_expression_for_targets_ranks_and_alphas_is_read_as_peft_reads_it(
    pretrained_folder: Path, tmp_path: Path
) -> None:
    want = made_by_peft(
        pretrained_folder,
        tmp_path / "a",
        target_modules=r".*\.1\..*(q_proj|up_proj)",
        rank_pattern={"up_proj": 2},
        alpha_pattern={r"^model.*up_proj": 7},
        use_rslora=True,
    )
    close(of_folder(pretrained_folder, tmp_path / "a"), want)
    weights = load_file(tmp_path / "a/adapter_model.safetensors")
    torch.save(weights, tmp_path / "a/adapter_model.bin")
    (tmp_path / "a/adapter_model.safetensors").unlink()
    close(of_folder(pretrained_folder, tmp_path / "a"), want)


def test_training_goes_on_from_what_peft_wrote_and_the_run_needs_it_no_more(
    train: Callable[..., Path],
    pretrained_folder: Path,
    export: Export,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    want = made_by_peft(pretrained_folder, tmp_path / "a")
    words = ("--adapter", "lora", "--adapter.rank", "4", "--adapter.alpha", "5", "--adapter.targets", "[q_proj]")
    run = train("--model.overlay", tmp_path / "a", *words, lr="1e-9")
    shutil.rmtree(tmp_path / "a")
    close(of_run(run), want)
    assert mt_generate(["--run", str(run), "--prompt", "Paris", "--max-new-tokens", "2"]) == 0


def test_generate_and_eval_take_an_adapter_over_weights(
    runs: dict[str, Path], pretrained_folder: Path, export: Export, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    export("--run", runs["a"], "--output", tmp_path / "out")
    source = ["--model", "llama", "--weights", str(pretrained_folder), "--adapter-folder", str(tmp_path / "out")]
    assert mt_generate([*source, "--prompt", "Paris", "--greedy", "--max-new-tokens", "5"]) == 0
    with_folder = capfd.readouterr().out
    assert mt_generate(["--run", str(runs["a"]), "--prompt", "Paris", "--greedy", "--max-new-tokens", "5"]) == 0
    assert capfd.readouterr().out == with_folder
    assert mt_eval([*source, "--dataset", "demo", "--data.read-rows", "1"]) == 0
    assert f"{pretrained_folder} + {tmp_path / 'out'}" in capfd.readouterr().out
    for main in (mt_generate, mt_eval):
        assert main(["--run", str(runs["a"]), *source[-2:], *(["--prompt", "x"] if main is mt_generate else [])]) == 2
        assert "--adapter-folder belongs to --weights" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lora_alpha": 6}, "lora_alpha is 6 there and 5 in the run"),
        ({"use_rslora": True}, "use_rslora is True there and False in the run"),
        ({"use_dora": True}, "use_dora is True there and False in the run"),
        ({"r": 8}, "r is 8 there and 4 in the run"),
        ({"alpha_pattern": {"q_proj": 9}}, "lora_alpha is 9 there and 5 in the run"),
        ({"use_qalora": True}, "use_qalora is True there, which is not known here"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa' there, which changes the base"),
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA' there and 'LORA' in the run"),
    ],
)
def test_a_config_that_contradicts_the_run_is_one_clear_message(
    change: dict[str, Any], message: str, pretrained_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made_by_peft(pretrained_folder, tmp_path / "a")
    edit(tmp_path / "a", **change)
    words = ("--adapter", "lora", "--adapter.rank", "4", "--adapter.alpha", "5", "--adapter.targets", "[q_proj]")
    fails(capfd, pretrained_folder, tmp_path, message, *words)


def edit(folder: Path, **change: Any) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | change))


def fails(capfd: pytest.CaptureFixture[str], base: Path, tmp_path: Path, message: str, *words: str) -> None:
    """A dry run says it before anything is trained."""
    argv = ["--model", "llama", "--model.weights", str(base), "--model.overlay", str(tmp_path / "a"), *TRAIN, *words]
    assert mt_train([*argv, "--dry-run"]) != 0
    assert message in capfd.readouterr().err


def test_an_adapter_of_other_targets_shapes_methods_or_weights_is_refused(
    runs: dict[str, Path],
    pretrain: Callable[..., Path],
    pretrained_folder: Path,
    export: Export,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    made_by_peft(pretrained_folder, tmp_path / "a")
    rank = ("--adapter.rank", "4", "--adapter.alpha", "5")
    fails(capfd, pretrained_folder, tmp_path, "it lacks base_model.model.model.layers.0.", "--adapter", "lora", *rank)
    fails(
        capfd,
        pretrained_folder,
        tmp_path,
        "the run has no place for",
        "--adapter",
        "lora",
        *rank,
        "--adapter.targets",
        "['*.1.*q_proj']",
    )
    fails(capfd, pretrained_folder, tmp_path, "holds an adapter LORA of peft, and the run's is full")
    other = pretrain(hidden_size=64)
    argv = ["--model", "llama", "--weights", str(other), "--adapter-folder", str(tmp_path / "a"), "--prompt", "x"]
    assert mt_generate(argv) == 1
    assert "tensors have another shape" in capfd.readouterr().err
    edit(tmp_path / "a", peft_type="FOURIERFT")
    argv[3] = str(pretrained_folder)
    assert mt_generate(argv) == 1
    assert "an adapter FOURIERFT of peft, which no installed adapter reads; those that read" in capfd.readouterr().err
    export("--run", runs["a"], "--output", tmp_path / "out")
    changed = tmp_path / "changed"
    shutil.copytree(pretrained_folder, changed)
    values = load_file(changed / "model.safetensors")
    save_file({name: value + 1e-3 for name, value in values.items()}, changed / "model.safetensors", {"format": "pt"})
    argv[3], argv[5] = str(changed), str(tmp_path / "out")
    assert mt_generate(argv) == 1
    assert "was trained on other weights than" in capfd.readouterr().err


def test_what_peft_has_no_place_for_is_written_under_our_names_and_reads_back(
    train: Callable[..., Path], pretrained_folder: Path, export: Export, tmp_path: Path
) -> None:
    run = train("--adapter", "lora", "--train.enable", "[model.norm.weight]")
    assert "has also trained model.norm.weight" in export("--run", run, "--output", tmp_path / "a")
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    written = config["mt_adapter"]
    assert (written["name"], written["plugin"], written["options"]["rank"]) == ("lora", "mt-plugin-standard", 8)
    assert "peft_type" not in config
    assert "model.layers.0.mlp.up_proj.lora_A" in load_file(tmp_path / "a/adapter_model.safetensors")
    assert torch.equal(of_folder(pretrained_folder, tmp_path / "a"), of_run(run))
    config["mt_adapter"]["name"] = "lora-xy"
    (tmp_path / "a/adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="holds an adapter lora-xy of mt-plugin-standard"):
        of_folder(pretrained_folder, tmp_path / "a")


def test_folders_of_ours_and_of_peft_share_one_live_model(
    runs: dict[str, Path], pretrained_folder: Path, export: Export, tmp_path: Path
) -> None:
    export("--run", runs["a"], "--output", tmp_path / "ours")
    want = made_by_peft(pretrained_folder, tmp_path / "theirs")
    loaded, several = load_adapters(
        {"ours": tmp_path / "ours", "theirs": tmp_path / "theirs"}, model="llama", weights=pretrained_folder
    )
    close(ours(loaded.model), theirs(pretrained_folder))
    several.use("theirs")
    close(ours(loaded.model), want)
    several.use("ours")
    close(ours(loaded.model), of_run(runs["a"]))
    loaded, several = load_adapters({"run": runs["a"], "theirs": tmp_path / "theirs"}, weights=pretrained_folder)
    several.use("run")
    close(ours(loaded.model), of_run(runs["a"]))
    with pytest.raises(WeightsError, match="holds no adapter"):
        load_adapters({"none": pretrained_folder}, model="llama", weights=pretrained_folder)


@pytest.mark.parametrize("dtype", ["keep", "bf16"])
def test_a_merged_folder_is_a_model_of_transformers_with_the_logits_of_the_run(
    dtype: str, runs: dict[str, Path], pretrained_folder: Path, export: Export, tmp_path: Path
) -> None:
    said = export("--run", runs["a"], "--merge", "--output", tmp_path / "out", "--dtype", dtype)
    assert "logits differ from the run by" in said
    assert said.partition("logits differ")[2].strip() in (tmp_path / "out/README.md").read_text()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        apart = (found(IDS).logits - of_run(runs["a"])).abs().max()
    assert apart < (1e-5 if dtype == "keep" else 2e-2)  # bf16 keeps 8 bits of a weight
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("Paris").input_ids
    frozen = load_file(tmp_path / "out/model.safetensors")["model.norm.weight"]
    assert torch.equal(frozen, load_file(pretrained_folder / "model.safetensors")["model.norm.weight"].to(frozen.dtype))


def test_a_merged_weight_is_rounded_once_to_the_type_that_is_asked_for(
    train: Callable[..., Path], pretrain: Callable[..., Path], export: Export, tmp_path: Path
) -> None:
    """Not to the type of the base first, here one of eleven bits."""
    run, name = train("--adapter", "lora", weights=pretrain(dtype="float16")), "model.layers.1.mlp.up_proj"
    with torch.no_grad():
        merged = dict(adapted_layers(load_run(run).model))[name].merged_weight()
    for asked, dtype in {"bf16": torch.bfloat16, "fp32": torch.float32, "keep": torch.float16}.items():
        export("--run", run, "--merge", "--output", tmp_path / asked, "--dtype", asked)
        found = load_file(tmp_path / asked / "model.safetensors")[f"{name}.weight"]
        assert torch.equal(found, merged.to(dtype)), asked


def test_beyond_the_tolerance_nothing_is_written_and_the_figures_are_told(
    runs: dict[str, Path], export: Export, tmp_path: Path
) -> None:
    words = ("--run", runs["a"], "--merge", "--output", tmp_path / "out", "--dtype", "bf16", "--tolerance", "1e-6")
    said = export(*words, fails=True)
    assert "nothing is written: logits differ from the run by" in said
    assert "1e-06 on average is tolerated" in said
    assert not list(tmp_path.iterdir())


def test_a_quantized_run_is_merged_into_the_weights_that_were_quantized(
    train: Callable[..., Path], pretrained_folder: Path, export: Export, tmp_path: Path
) -> None:
    run = train("--adapter", "lora", "--quantizer", "int8")
    said = export("--run", run, "--merge", "--output", tmp_path / "out", "--tolerance", "0.5")
    assert "differ from the quantized run by" in said
    merged, base = (load_file(each / "model.safetensors") for each in (tmp_path / "out", pretrained_folder))
    adapter = load_file(find(run) / "model/model-00001.safetensors")
    place = "model.layers.1.mlp.up_proj"
    delta = 2.0 * adapter[f"{place}.lora_B"] @ adapter[f"{place}.lora_A"]
    close(merged[f"{place}.weight"], base[f"{place}.weight"] + delta)


def test_a_quantized_base_that_was_drawn_is_drawn_again_and_merged(
    train: Callable[..., Path], export: Export, tmp_path: Path
) -> None:
    """Neither a folder nor the checkpoint has it."""
    run = train(
        "--adapter", "lora", "--quantizer", "int8", *("--model.dim", "64", "--model.n-layers", "1"), weights="none"
    )
    said = export("--run", run, "--merge", "--output", tmp_path / "out", "--tolerance", "0.5")
    assert "differ from the quantized run by" in said


def test_runs_are_merged_with_shares_and_refused_over_other_weights(
    runs: dict[str, Path], train: Callable[..., Path], pretrain: Callable[..., Path], export: Export, tmp_path: Path
) -> None:
    shares = {"a": 0.7, "b": 0.3}
    words = [word for name, share in shares.items() for word in ("--run", f"{runs[name]}:{share}")]
    export(*words, "--merge", "--output", tmp_path / "out")
    adapters = []
    for name in shares:
        export("--run", runs[name], "--output", tmp_path / name)
        adapters.append(tmp_path / name)
    base = AutoModelForCausalLM.from_pretrained(pretrain())
    model = peft.PeftModel.from_pretrained(base, adapters[0], adapter_name="a")
    model.load_adapter(adapters[1], adapter_name="b")
    merged, weights = load_file(tmp_path / "out/model.safetensors"), load_file(pretrain() / "model.safetensors")
    for name in ("model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"):
        layer = model.get_submodule(f"base_model.model.{name}")
        deltas = [share * layer.get_delta_weight(each) for each, share in shares.items()]
        close(merged[f"{name}.weight"], weights[f"{name}.weight"] + sum(deltas))
    other = train("--adapter", "lora", weights=pretrain(initializer_range=0.05))
    said = export("--run", runs["a"], "--run", other, "--merge", "--output", tmp_path / "no", fails=True)
    assert "are adapters of different weights" in said
    assert "for --merge only" in export(*words, "--output", tmp_path / "no", fails=True)
    assert "'x' is no number" in export("--run", f"{runs['a']}:x", "--merge", "--output", tmp_path / "no", fails=True)


def test_of_several_runs_the_first_alone_may_have_trained_more_than_an_adapter(
    runs: dict[str, Path], pretrained_folder: Path, export: Export, tmp_path: Path
) -> None:
    """Such as the head of a reward model, with which the merged one is compared, too."""
    rows = [{"prompt": "Q", "chosen": "yes", "rejected": word} for word in ("no", "never", "maybe", "perhaps")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    reward, words = tmp_path / "reward", ["--model.weights", pretrained_folder, "--adapter", "lora", *TRAIN[2:]]
    words += ["--objective", "reward", "--dataset", "jsonl", "--dataset.path", tmp_path / "rows.jsonl"]
    assert mt_train([str(word) for word in (*words, "--data.eval", "none", "--output", reward)]) == 0
    said = export("--run", runs["a"], "--run", reward, "--merge", "--output", tmp_path / "no", fails=True)
    assert "has trained lm_head.objective.score.weight beside its adapter, which is no sum" in said
    assert f"name it first: --run {find(reward)} --run {find(runs['a'])}" in said
    twice = ("--run", reward, "--run", f"{reward}:0.5", "--merge", "--output", tmp_path / "no")
    assert "merge each by itself" in export(*twice, fails=True)
    export("--run", reward, "--run", runs["a"], "--merge", "--output", tmp_path / "out", "--tolerance", "1e-5")
    head = load_file(find(reward) / "model/model-00001.safetensors")["lm_head.objective.score.weight"]
    assert torch.equal(load_file(tmp_path / "out/model.safetensors")["score.weight"], head)
    assert not (tmp_path / "no").exists()


def test_what_cannot_be_merged_and_what_is_no_adapter_point_to_what_can_be_done(
    runs: dict[str, Path], train: Callable[..., Path], export: Export, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    host = discover_plugins()
    source = open_source(str(runs["a"]), host)
    offer = source.parts.offers["adapter"]
    apart = replace(offer, component=replace(offer.component, mergeable=False))
    source = replace(source, parts=replace(source.parts, offers={**source.parts.offers, "adapter": apart}))
    with pytest.raises(UsageError, match="the adapter lora, which no weights can stand for"):
        merge([(source, 1.0)], tmp_path / "out", host, dtype=None, shard_bytes=10**9, tolerance=None, say=print)
    assert mt_convert([str(runs["a"]), str(tmp_path / "out")]) == 2
    assert "mt-export --run" in capfd.readouterr().err
    said = export("--run", train(), "--output", tmp_path / "out", fails=True)
    assert "trained all of its model, which is no adapter; mt-convert" in said
    assert not list(tmp_path.iterdir())
