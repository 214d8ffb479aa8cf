"""The other adapters that peft has: written for it and read from it, over transformers' model, as ``test_export.py`` does for LoRA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peft
import pytest
from adapter_folders import close, make_adapter, of_folder, of_run, theirs

TRAINED = {
    "dora": ("--adapter.rank", "4", "--adapter.rslora", "true", "--adapter.ranks", "{mlp.up_proj: 2}"),
    "lora-plus": ("--adapter.rank", "4"),
    "ia3": (),
    "vera": ("--adapter.rank", "16"),
    "adalora": ("--adapter.rank", "6", "--adapter.target-rank", "2", "--adapter.every-steps", "1"),
    "boft": (),
    "delora": ("--adapter.rank", "4"),
    "eva": ("--adapter.rank", "4"),
    "gora": ("--adapter.min-rank", "1"),
    "hira": ("--adapter.rank", "4"),
    "hra": (),
    "loha": ("--adapter.rank", "4", "--adapter.rslora", "true", "--adapter.ranks", "{mlp.up_proj: 2}"),
    "lokr": ("--adapter.rank", "2", "--adapter.factor", "4"),
    "lora-da": (),
    "lora-one": (),
    "lora-pro": (),
    "loftq": (),
    "oft": ("--adapter.block-size", "8"),
    "randlora": ("--adapter.rank", "4"),
}
OF_PEFT = {
    "dora": peft.LoraConfig(
        r=4, lora_alpha=5, use_dora=True, target_modules=["q_proj", "up_proj"], init_lora_weights=False
    ),
    "ia3": peft.IA3Config(
        target_modules=["k_proj", "up_proj"], feedforward_modules=["up_proj"], init_ia3_weights=False
    ),
    "vera": peft.VeraConfig(r=8, target_modules=["q_proj", "up_proj"], init_weights=False),
    "boft": peft.BOFTConfig(target_modules=["q_proj", "up_proj"], init_weights=False),
    "delora": peft.DeloraConfig(r=4, delora_lambda=2, target_modules=["q_proj", "up_proj"], init_weights=False),
    "hira": peft.HiraConfig(r=4, target_modules=["q_proj", "up_proj"], init_weights=False),
    "hra": peft.HRAConfig(r=4, target_modules=["q_proj", "up_proj"], init_weights=False),
    "loha": peft.LoHaConfig(
        r=4, alpha=5, rank_pattern={"up_proj": 2}, target_modules=["q_proj", "up_proj"], init_weights=False
    ),
    "lokr": peft.LoKrConfig(r=2, alpha=5, decompose_factor=4, target_modules=["q_proj", "up_proj"], init_weights=False),
    "oft": peft.OFTConfig(oft_block_size=8, target_modules=["q_proj", "up_proj"], init_weights=False),
    "randlora": peft.RandLoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_weights=False),
}
OWN = {
    "moslora": (),
    "pissa": (),
    "plora": ("--adapter.every-steps", "1"),
    "freeze": ("--adapter.blocks", "1"),
}


ALIKE = {"gora", "loftq", "lora-da", "lora-one"}
"""Written by what writes eva and lora-pro."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.soak) if each in ALIKE else each for each in TRAINED]
)
def test_peft_loads_it_with_the_logits_of_the_run_and_so_do_we(
    name: str, train: Callable[..., Path], pretrained_folder: Path, export: Callable[..., str], tmp_path: Path
) -> None:
    # more makes weights so large that a rounding error grows a hundredfold; lora-plus takes 16 times as much for half of its own
    rate = {"randlora": "1e-3", "lora-plus": "1e-2"}.get(name, "1e-1")
    run = train("--adapter", name, *TRAINED[name], lr=rate)
    assert "(own names)" not in export("--run", run, "--output", tmp_path / "out")
    want = of_run(run)
    assert (want - theirs(pretrained_folder)).abs().max() > 1e-3
    close(theirs(pretrained_folder, tmp_path / "out"), want)
    close(of_folder(pretrained_folder, tmp_path / "out"), want)


@pytest.mark.parametrize("name", OF_PEFT)
def test_what_peft_wrote_has_pefts_logits_here(name: str, pretrained_folder: Path, tmp_path: Path) -> None:
    want = make_adapter(pretrained_folder, tmp_path / "a", OF_PEFT[name])
    assert (want - theirs(pretrained_folder)).abs().max() > 1e-3
    close(of_folder(pretrained_folder, tmp_path / "a"), want)


@pytest.mark.parametrize("name", OWN)
def test_what_peft_has_no_form_for_reads_back_and_merges(
    name: str, train: Callable[..., Path], pretrained_folder: Path, export: Callable[..., str], tmp_path: Path
) -> None:
    run = train("--adapter", name, *OWN[name])
    assert "(own names)" in export("--run", run, "--output", tmp_path / "out")
    close(of_folder(pretrained_folder, tmp_path / "out"), of_run(run))
    export("--run", run, "--merge", "--output", tmp_path / "merged")
    close(theirs(tmp_path / "merged"), of_run(run))


def test_loftq_over_four_bits_is_merged_into_these(
    train: Callable[..., Path], pretrained_folder: Path, export: Callable[..., str], tmp_path: Path
) -> None:
    """Its pairs have what the bits lost; the weights as they were would get that twice."""
    run = train("--adapter", "loftq", "--adapter.rank", "12", "--quantizer", "nf4", lr="1e-9")
    assert "it is for the base in those bits" in export("--run", run, "--output", tmp_path / "out")
    export("--run", run, "--merge", "--output", tmp_path / "merged")
    want, before = of_run(run), theirs(pretrained_folder)
    close(theirs(tmp_path / "merged"), want)
    some = train("--adapter", "loftq", "--adapter.targets", "q_proj", "--quantizer", "nf4", lr="1e-9")
    export("--run", some, "--merge", "--output", tmp_path / "merged-some")
    close(theirs(tmp_path / "merged-some"), of_run(some))
    plain = train("--adapter", "lora", "--adapter.rank", "2")
    said = export("--run", plain, "--run", run, "--merge", "--output", tmp_path / "both", fails=True)
    assert "is for that base alone, and these are over several" in said
    assert (want - before).abs().mean() < 5e-3, "nearer to the weights as they were than four bits are (8e-3)"
