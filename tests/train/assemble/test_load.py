"""Models that are loaded and not trained, in each precision."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mt_core.errors import ConfigError, UsageError
from mt_core.nn import KVCache
from mt_plugin_serve.command import main as serve
from mt_tools import generate
from mt_tools.cli.convert import main as convert
from mt_tools.cli.eval import main as evaluate
from mt_tools.cli.export import main as export
from mt_tools.cli.generate import main as mt_generate
from mt_train import LoadedModel, load_adapters, load_run, load_weights, train
from mt_train.assemble import load as loading
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_file import run_config
from mt_train.checkpoint.store import find
from mt_train.engine.precision import DTYPES, cast_model
from mt_train.engine.processes import Process
from mt_train.generation.forward import make_batch
from mt_train.plugins.resolve import resolve

SMALL = {"steps": 2, "micro_batch_size": 1, "sequence_len": 64, "dtype": "bf16"}
RUNS = {
    "full": {"model": {"name": "llama", "n_layers": 1}},
    "tied": {"model": {"name": "gemma", "n_layers": 1}},
    "experts, whose router keeps fp32": {"model": {"name": "deepseek"}},
    "lora": {"model": {"name": "llama", "n_layers": 1}, "adapter": "lora"},
    "an adapter that rewrites its base": {"model": {"name": "llama", "n_layers": 1}, "adapter": "pissa"},
    "four bits": {"model": {"name": "llama", "n_layers": 1}, "adapter": "lora", "quantizer": "nf4"},
}


IDS = torch.arange(3, 60)[None]


@torch.no_grad()
def logits(loaded: LoadedModel) -> Tensor:
    hidden = loaded.model(make_batch(IDS, torch.arange(IDS.shape[1])[None]), KVCache())
    return loaded.model.head(hidden).float()


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load") / "run"
    train({**RUNS[request.param], "train": SMALL, "data": {"eval": "none", "read_rows": 8}}, output=folder)
    return folder


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_weights_are_those_in_fp32_rounded_once(run: Path, dtype: str) -> None:
    wanted, found = load_run(run, dtype="fp32").model, load_run(run, dtype=dtype).model
    assert {each.dtype for each in wanted.parameters() if each.is_floating_point()} == {torch.float32}
    cast_model(wanted, dtype)
    there, here = dict(wanted.named_parameters()), dict(found.named_parameters())
    assert there.keys() == here.keys()
    assert [name for name, each in here.items() if each.dtype != there[name].dtype] == []
    assert [name for name, each in here.items() if not torch.equal(each, there[name])] == []
    rounded = set(here) - set(found.kept_names())
    assert {here[name].dtype for name in rounded if here[name].is_floating_point()} == {DTYPES[dtype]}
    tied = {id(each) for each in wanted.parameters()}
    assert len(tied) == len({id(each) for each in found.parameters()}), "tied weights are one"


def test_weights_in_16_bits_are_never_there_in_32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    train({**RUNS["full"], "train": SMALL, "data": {"eval": "none", "read_rows": 8}}, output=folder)
    seen = []
    fill = loading.fill_model
    monkeypatch.setattr(
        loading,
        "fill_model",
        lambda model, *rest, **more: (
            seen.extend(each.dtype for each in model.parameters()) or fill(model, *rest, **more)
        ),
    )
    load_run(folder, dtype="bf16")
    assert set(seen) == {torch.bfloat16}


def test_logits_in_bf16_are_those_of_transformers(tmp_path: Path) -> None:
    """As far from its fp32 as its own bf16 is: a relative distance of some 2^-8, for 8 bits of each number."""
    from transformers import AutoModelForCausalLM

    folder, weights = tmp_path / "run", tmp_path / "weights"
    train(
        {"model": {"name": "llama"}, "train": {**SMALL, "steps": 4}, "data": {"eval": "none", "read_rows": 8}},
        output=folder,
    )
    assert convert([str(folder), str(weights)]) == 0
    with torch.no_grad():
        exact = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)(IDS).logits
        theirs = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.bfloat16)(IDS).logits.float()
    ours = logits(load_weights(weights, dtype="bf16"))
    apart = (theirs - exact).norm() / exact.norm()
    assert 0 < (ours - exact).norm() / exact.norm() < 1.5 * apart
    assert (ours - theirs).norm() / exact.norm() < 1.5 * apart


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights that transformers reads, with a tokenizer, beside the run that trained them."""
    folder = tmp_path_factory.mktemp("weights")
    train({**RUNS["full"], "train": SMALL, "data": {"eval": "none", "read_rows": 8}}, output=folder / "run")
    assert convert([str(folder / "run"), str(folder / "weights")]) == 0
    return folder / "weights"


@pytest.mark.parametrize("double", [True, False])
def test_logits_in_four_bits_are_those_of_transformers_and_peft(
    weights: Path, tmp_path: Path, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-4: the same numbers of 4 bits, and sums of fp32 in another order.

    On a processor with AVX512-BF16 bitsandbytes takes a product of its own, in bf16 and for rows of whole blocks alone.
    """
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    adapter, quantizer = tmp_path / "adapter", {"name": "nf4", "double": double}
    raw = {
        "model": {"weights": str(weights)},
        "adapter": "lora",
        "optimizer": {"lr": 0.02},
        "train": {**SMALL, "steps": 3},
    }
    train({**raw, "data": {"eval": "none", "read_rows": 8}}, output=tmp_path / "tuned")
    assert export(["--run", str(tmp_path / "tuned"), "--output", str(adapter)]) == 0
    stored = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": double}
    wanted = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32, **stored)
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)(IDS).logits
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, quantization_config=wanted)
        theirs = model(IDS).logits
        adapted = PeftModel.from_pretrained(model, adapter)(IDS).logits
    loaded, several = load_adapters({"tuned": adapter}, weights=weights, quantizer=quantizer)
    assert (logits(load_weights(weights, quantizer=quantizer)) - theirs).abs().max() < 1e-4
    assert (logits(loaded) - theirs).abs().max() < 1e-4
    several.use("tuned")
    assert (logits(loaded) - adapted).abs().max() < 1e-4
    assert (plain - theirs).abs().max() > 1e-2, "four bits are seen"
    assert (adapted - theirs).abs().max() > 1e-2, "so is the adapter"


def test_commands_take_a_quantizer_for_weights_without_a_run(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, quantized = ["--weights", str(weights)], ["--quantizer", "nf4"]
    asked = ["--prompt", "The ", "--greedy", "--max-new-tokens", "8"]
    capsys.readouterr()
    assert mt_generate([*words, *quantized, *asked]) == 0
    said = capsys.readouterr().out
    loaded = load_weights(weights, quantizer="nf4")
    assert said == generate(loaded, "The ", greedy=True, max_new_tokens=8)[0].text + "\n"
    losses = []
    for more in ([], quantized):
        rows = ["--dataset", "demo", "--data.read-rows", "1", "--output", str(tmp_path / f"eval{len(more)}")]
        assert evaluate([*words, *rows, *more]) == 0
        losses.append(json.loads((tmp_path / f"eval{len(more)}" / "metrics.json").read_text())["results"][0]["loss"])
    assert 0 < abs(losses[1] - losses[0]) < 0.1
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The "}\n')
    words += ["--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / "out"), "--max-new-tokens", "4"]
    assert mt_generate([*words, *quantized]) == 0
    assert mt_generate(words) != 0
    assert "quantizer" in capsys.readouterr().err, "an output has texts of one model"


def test_a_quantizer_of_a_run_or_of_no_name_gets_one_message(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (serve, mt_generate):
        words = ["--run", str(weights.parent / "run"), "--quantizer", "nf4"]
        assert command([*words, *(["--prompt", "x"] if command is mt_generate else [])]) == 2
        assert "--quantizer belongs to --weights; a run is loaded with its own" in capsys.readouterr().err
    assert mt_generate(["--weights", str(weights), "--quantizer", "nf5", "--prompt", "x"]) == 2
    assert "no quantizer named 'nf5'. Did you mean 'nf4'?" in capsys.readouterr().err
    with pytest.raises(UsageError, match="quantizer is a name, or a mapping of 'name' and options; got 4"):
        load_weights(weights, quantizer=4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nf4 conflicts with adapter:full"):
        train({"model": {"weights": str(weights)}, "quantizer": "nf4", "train": SMALL}, output=None)


def test_commands_take_the_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    train({**RUNS["full"], "train": SMALL, "data": {"eval": "none", "read_rows": 8}}, output=folder)
    capsys.readouterr()
    assert (
        mt_generate(["--run", str(folder), "--prompt", "The ", "--greedy", "--max-new-tokens", "8", "--dtype", "bf16"])
        == 0
    )
    said = capsys.readouterr().out
    assert said == generate(load_run(folder, dtype="bf16"), "The ", greedy=True, max_new_tokens=8)[0].text + "\n"
    losses = {}
    for words in ((), ("--dtype", "fp32"), ("--dtype", "bf16"), ("--train.dtype", "bf16")):
        out = tmp_path / f"eval{'-'.join(words)}"
        rows = ["--dataset", "demo", "--data.read-rows", "1", "--output", str(out)]
        assert evaluate(["--run", str(folder), *rows, *words]) == 0
        losses[words] = json.loads((out / "metrics.json").read_text())["results"][0]["loss"]
    assert losses[()] == losses["--dtype", "fp32"], "on a CPU"
    assert losses["--dtype", "bf16"] == losses["--train.dtype", "bf16"] != losses[()]
    assert losses["--dtype", "bf16"] == pytest.approx(losses[()], rel=1e-2)
    asked = tmp_path / "prompts.jsonl"
    asked.write_text('{"prompt": "The "}\n')
    words = ["--run", str(folder), "--prompts", str(asked), "--out", str(tmp_path / "out"), "--max-new-tokens", "4"]
    assert mt_generate([*words, "--dtype", "bf16"]) == 0
    assert mt_generate(words) != 0
    assert "dtype" in capsys.readouterr().err, "an output has texts of one precision"


def test_auto_on_a_gpu_is_the_precision_of_the_run_or_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    train({**RUNS["full"], "train": SMALL, "data": {"eval": "none", "read_rows": 8}}, output=folder)
    host, checkpoint = discover_plugins(), find(folder)
    parts = Parts.of(resolve(run_config(checkpoint), host))
    assert loading.settle_dtype("auto", parts, checkpoint) == "fp32"
    monkeypatch.setattr(loading, "_process", lambda: Process(0, 1, 0, torch.device("cuda")))
    assert loading.settle_dtype("auto", parts, checkpoint) == "bf16"
    assert loading.settle_dtype("fp32", parts, checkpoint) == "fp32"
    for word, dtype in (("fp16", "fp16"), ("bf16", "bf16"), ("fp32", "fp32")):
        weights = tmp_path / word
        assert convert([str(folder), str(weights), "--dtype", word]) == 0
        raw = {"model": {"weights": str(weights)}, "train": {"sequence_len": 2}}
        assert loading.settle_dtype("auto", Parts.of(resolve(raw, host)), None) == dtype


def test_the_generator_of_the_programs_device_is_kept_beside_that_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that loads a teacher draws its dropout on, whenever it has loaded it."""
    kept: list[list[torch.device]] = []

    def keep(devices: list[torch.device]) -> AbstractContextManager[None]:
        kept.append(devices)
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", keep)
    monkeypatch.setattr(loading, "build_in", lambda *given: None)
    parts = Parts.of(resolve({**RUNS["full"], "train": SMALL}, discover_plugins()))
    for name in ("cpu", "cuda"):
        loading.build_empty(parts, torch.device(name), "bf16")
    assert kept == [[], [torch.device("cuda")]]


def test_a_precision_that_is_none_gets_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"load_weights\(\): dtype is auto, fp32, bf16 or fp16; got 'int8'"):
        load_weights(None, tmp_path, dtype="int8")
    assert evaluate(["--weights", str(tmp_path), "--dataset", "demo", "--dtype", "int8"]) == 2
    assert "--dtype is one of auto, fp32, bf16, fp16; got int8" in capsys.readouterr().err
    for command in (serve, mt_generate):
        with pytest.raises(SystemExit):
            command(["--weights", str(tmp_path), "--dtype", "int8"])
        assert "--dtype: invalid choice: 'int8'" in capsys.readouterr().err
