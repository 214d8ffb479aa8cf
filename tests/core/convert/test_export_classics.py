"""The other adapters that peft has: written for it and read from it, over transformers' model, as ``test_export.py`` does for LoRA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peft
import pytest
from adapter_folders import close, made, of_folder, of_run, theirs

TRAINED = {
    "dora": ("--adapter.rank", "4", "--adapter.rslora", "true", "--adapter.ranks", "{mlp.up_proj: 2}"),
    "lora-plus": ("--adapter.rank", "4"),
    "ia3": (),
    "vera": ("--adapter.rank", "16"),
}
OF_PEFT = {
    "dora": peft.LoraConfig(
        r=4, lora_alpha=5, use_dora=True, target_modules=["q_proj", "up_proj"], init_lora_weights=False
    ),
    "ia3": peft.IA3Config(
        target_modules=["k_proj", "up_proj"], feedforward_modules=["up_proj"], init_ia3_weights=False
    ),
    "vera": peft.VeraConfig(r=8, target_modules=["q_proj", "up_proj"], init_weights=False),
}
OWN = {
    "moslora": (),
    "adalora": (),
    "pissa": (),
    "plora": ("--adapter.every-steps", "1"),
    "freeze": ("--adapter.blocks", "1"),
}


@pytest.mark.parametrize("name", TRAINED)
def test_peft_loads_it_with_the_logits_of_the_run_and_so_do_we(
    name: str, train: Callable[..., Path], pretrained: Path, export: Callable[..., str], tmp_path: Path
) -> None:
    run = train("--adapter", name, *TRAINED[name], lr="1e-1")
    assert "(own names)" not in export("--run", run, "--output", tmp_path / "out")
    want = of_run(run)
    assert (want - theirs(pretrained)).abs().max() > 1e-3
    close(theirs(pretrained, tmp_path / "out"), want)
    close(of_folder(pretrained, tmp_path / "out"), want)


@pytest.mark.parametrize("name", OF_PEFT)
def test_what_peft_wrote_has_pefts_logits_here(name: str, pretrained: Path, tmp_path: Path) -> None:
    want = made(pretrained, tmp_path / "a", OF_PEFT[name])
    assert (want - theirs(pretrained)).abs().max() > 1e-3
    close(of_folder(pretrained, tmp_path / "a"), want)


@pytest.mark.parametrize("name", OWN)
def test_what_peft_has_no_form_for_reads_back_and_merges(
    name: str, train: Callable[..., Path], pretrained: Path, export: Callable[..., str], tmp_path: Path
) -> None:
    run = train("--adapter", name, *OWN[name])
    assert "(own names)" in export("--run", run, "--output", tmp_path / "out")
    close(of_folder(pretrained, tmp_path / "out"), of_run(run))
    export("--run", run, "--merge", "--output", tmp_path / "merged")
    close(theirs(tmp_path / "merged"), of_run(run))
