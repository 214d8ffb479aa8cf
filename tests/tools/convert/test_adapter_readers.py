"""What is said of an exported adapter to those who open it elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoHaConfig, LoraConfig, VeraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

from mt_core import UsageError
from mt_core.adapters.base import PeftForm
from mt_tools.convert.adapter_readers import (
    REFUSED_BY_PEFT,
    STATE_SPACE,
    base_keys,
    check_base_name,
    find_missing_in_base,
    say_readers,
    say_vllm,
)


def source(started_from: str | None, weights: Path | None = None, base_name: str | None = None) -> Any:
    config = SimpleNamespace(model=SimpleNamespace(options=None))
    parts, writer = SimpleNamespace(merged=(), config=config), SimpleNamespace(exported=lambda options: {})
    named = {"started_from": started_from, "weights": weights, "base_name": base_name}
    return SimpleNamespace(**named, parts=parts, writer=writer)


def lora(ranks: dict[str, int], **config: Any) -> PeftForm:
    """A form of layers with these ranks."""
    most = max(ranks.values())
    names = {
        f"{layer}.lora_{which}": f"base_model.model.{layer}.lora_{which}.weight" for layer in ranks for which in "AB"
    }
    given = {"peft_type": "LORA", "r": most, "lora_alpha": most, "rank_pattern": ranks, "alpha_pattern": {}, **config}
    return PeftForm(config=given, names=names)


@pytest.mark.parametrize(
    ("given", "name", "revision"),
    [
        ("acme/llama", "acme/llama", None),
        ("acme/llama@v1.0", "acme/llama", "v1.0"),
        ("/home/me/.cache/hub/models--acme--my-llama/snapshots/0a1b", "acme/my-llama", "0a1b"),
        ("/data/my-llama", None, None),
        ("./my-llama", None, None),
        ("data/base/my-llama", None, None),
        (None, None, None),
    ],
)
def test_the_base_has_its_name_on_the_hub_where_one_is_known(
    given: str | None, name: str | None, revision: str | None
) -> None:
    """peft asks for ``base_model_name_or_path`` at ``revision``; ``name@revision`` is no name there."""
    keys = base_keys(source(given))
    assert keys["base_model_name_or_path"] == name
    assert keys.get("revision") == revision
    named = base_keys(source(given, base_name="acme/other@v2"))
    assert named == {"base_model_name_or_path": "acme/other", "revision": "v2"}, (
        "what is given goes before what is known"
    )


@pytest.mark.parametrize("given", ["/data/my-llama", "./my-llama", "my-llama", "a/b/c", "~/x", "acme/", ""])
def test_a_base_that_is_no_name_on_the_hub_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="no path"):
        check_base_name(given)


@pytest.mark.parametrize(("rank", "flag"), [(1, 1), (2, 8), (8, 8), (48, 64), (200, 256), (257, 320), (512, 512)])
def test_the_rank_for_vllm_is_the_least_of_its_values_that_is_enough(rank: int, flag: int) -> None:
    said: list[str] = []
    say_vllm(source("acme/llama"), Path("out/sums"), rank, said.append)
    assert said == [f"notice: vllm serve acme/llama --enable-lora --max-lora-rank {flag} --lora-modules sums=out/sums"]


def test_a_rank_that_vllm_does_not_take_and_a_method_that_it_does_not_know_are_told() -> None:
    said: list[str] = []
    say_vllm(source("acme/llama"), Path("out"), 513, said.append)
    assert said == ["notice: vLLM takes ranks up to 512, and this has 513: give it --merge"]
    for form in (PeftForm({"peft_type": "OFT"}, {}), lora({"q": 4}, use_dora=True)):
        said.clear()
        names = {**form.names, "q.m": "base_model.model.q.lora_magnitude_vector"} if form.names else {}
        say_readers(source("acme/llama"), Path("out"), PeftForm(form.config, names), None, said.append)
        assert "vLLM, SGLang and llama.cpp take plain LoRA alone" in said[0]


def test_layers_that_the_base_has_not_growth_and_a_path_are_told(tmp_path: Path) -> None:
    save_file({f"q.{i}.weight": torch.zeros(2) for i in range(2)}, tmp_path / "model.safetensors")
    here = source(str(tmp_path), tmp_path)
    assert find_missing_in_base(here, ["q.0", "q.1"]) == []
    assert find_missing_in_base(here, ["q.0", "k.0"]) == ["k.0"]
    assert find_missing_in_base(source("acme/llama"), ["k.0"]) == [], "nothing is known of files that are not there"
    said: list[str] = []
    say_readers(here, Path("out"), lora({"q.0": 2, "k.0": 8}), 8, said.append)
    assert "a path of this machine" in said[0]
    assert f"the base {tmp_path} has no k.0.weight" in said[1]
    assert "ranks from 2 to 8; all are filled with zeros up to 8" in said[2]
    assert "about 38% of the file" in said[2], "6 of 16 rows"
    assert "--max-lora-rank 8 " in said[3]


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (lora({"q": 8, "k": 8}), False),
        (lora({"q": 8, "k": 8}, lora_alpha=16), False),
        (lora({"q": 4, "k": 8}), True),
        (lora({"q": 8, "k": 8}, alpha_pattern={"k": 4}), True),
        (lora({"q": 8}, use_rslora=True), True),
    ],
    ids=["one factor", "another factor", "ranks", "alphas", "rslora"],
)
def test_the_form_of_peft_says_what_others_would_multiply_otherwise(form: PeftForm, told: bool) -> None:
    said: list[str] = []
    say_readers(source("acme/llama"), Path("out"), form, None, said.append)
    assert any("by another factor" in each for each in said) == told


@pytest.mark.parametrize(
    ("kind", "layer", "told"),
    [("mamba", "out_proj", True), ("mamba", "in_proj", False), ("llama", "out_proj", False)],
)
def test_a_lora_that_peft_refuses_in_a_state_space_model_is_told(
    tmp_path: Path, kind: str, layer: str, told: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    said: list[str] = []
    say_readers(source("acme/base", tmp_path), Path("out"), lora({f"mixer.{layer}": 8}), 8, said.append)
    assert any("peft refuses a LoRA on out_proj of a mamba model" in each for each in said) == told


def test_peft_refuses_what_is_told_and_takes_the_rest_of_a_state_space_model() -> None:
    config = MambaConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, state_size=2)
    for layer in sorted(REFUSED_BY_PEFT):
        with pytest.raises(ValueError, match="incompatible with Mamba-based models"):
            get_peft_model(MambaForCausalLM(config), LoraConfig(target_modules=[layer]))
    get_peft_model(MambaForCausalLM(config), LoraConfig(target_modules=["in_proj", "x_proj"]))
    assert config.model_type in STATE_SPACE


def test_a_folder_in_either_form_is_the_run_here_and_in_peft(
    train: Callable[..., Path], pretrained_folder: Path, export: Callable[..., str], tmp_path: Path
) -> None:
    """Also as the LoRA that it is to others, and to train on with the options of the run."""
    from adapter_folders import close, of_folder, of_run, theirs

    words = ("--adapter.rank", "4", "--adapter.rslora", "true", "--adapter.ranks", "{mlp.up_proj: 2}")
    run = train("--adapter", "lora", *words, lr="1e-1")
    want = of_run(run)
    said = export("--run", run, "--output", tmp_path / "all")
    assert (
        f"vllm serve {pretrained_folder} --enable-lora --max-lora-rank 8 --lora-modules all={tmp_path / 'all'}" in said
    )
    assert "a path of this machine" in said
    assert "would multiply some layers by another factor" in export(
        "--run", run, "--output", tmp_path / "peft", "--form", "peft"
    )
    configs = {name: json.loads((tmp_path / name / "adapter_config.json").read_text()) for name in ("all", "peft")}
    keys = ("r", "lora_alpha", "use_rslora", "rank_pattern")
    assert [configs["all"][key] for key in keys] == [4, 4, False, {}]
    assert [configs["peft"][key] for key in keys[:3]] == [4, 16, True]
    for name in configs:
        close(theirs(pretrained_folder, tmp_path / name), want)
        close(of_folder(pretrained_folder, tmp_path / name), want)
    more = train("--model.overlay", tmp_path / "all", "--adapter", "lora", *words, lr="1e-9")
    close(of_run(more), want)
    as_others = ("--adapter", "lora", "--adapter.rank", "4", "--adapter.alpha", "4")
    close(of_run(train("--model.overlay", tmp_path / "all", *as_others, lr="1e-9")), want)
    (tmp_path / "all/mt_adapter.json").unlink()
    close(of_folder(pretrained_folder, tmp_path / "all"), want)
    assert "leave out --merge and --as-lora" in export(
        "--run", run, "--output", tmp_path / "x", "--form", "peft", "--merge", fails=True
    )


@pytest.mark.parametrize("kind", ["LOHA", "LORA", "VERA"])
def test_types_that_peft_opens_over_no_transposed_layer_are_told(kind: str) -> None:
    """Peft itself says so, with the layers of GPT-2."""
    form = lora({"h.0.attn.c_attn": 4}, peft_type=kind)
    said: list[str] = []
    say_readers(source(None), Path("out"), form, None, said.append, transposed=True)
    assert ("peft opens no LOHA over layers" in "".join(said)) == (kind == "LOHA")
    gpt = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=8))
    config = {"LOHA": LoHaConfig, "LORA": LoraConfig, "VERA": VeraConfig}[kind](target_modules=["c_attn"])
    if kind == "LOHA":
        with pytest.raises(TypeError, match="Conv1D"):
            get_peft_model(gpt, config)
    else:
        get_peft_model(gpt, config)
