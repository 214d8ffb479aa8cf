"""Runs with ``model.overlay``: an adapter that goes on from another's checkpoint, and one over weights that are not the base's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from adapter_folders import close, of_folder, of_run
from safetensors.torch import save_file

from mt_train.checkpoint.store import find

Train, Export = Callable[..., Path], Callable[..., str]


def test_an_adapter_that_went_on_from_a_checkpoint_stands_on_the_base_alone(
    train: Train, pretrained_folder: Path, export: Export, tmp_path: Path
) -> None:
    first = train("--adapter", "lora")
    run = train("--adapter", "lora", "--model.overlay", find(first) / "model")
    for words in ((), ("--as-lora",)):
        out = tmp_path / f"out{len(words)}"
        assert "model.overlay" not in export("--run", run, "--output", out, *words)
        close(of_folder(pretrained_folder, out), of_run(run))
    both = export("--run", f"{first}:0.5", "--run", f"{run}:0.5", "--merge", "--output", tmp_path / "both")
    assert "logits differ from the runs together by" in both


def test_weights_of_an_overlay_under_an_adapter_are_told(train: Train, export: Export, tmp_path: Path) -> None:
    """No folder of an adapter has them, and its readers would not miss them."""
    overlay = tmp_path / "overlay.safetensors"
    torch.manual_seed(0)
    save_file({"model.layers.0.mlp.up_proj.weight": torch.randn(64, 32)}, overlay)
    run = train("--adapter", "lora", "--model.overlay", overlay)
    said = f"weights of model.overlay {overlay}"
    assert said in export("--run", run, "--output", tmp_path / "out")
    refused = export("--run", run, "--output", tmp_path / "lora", "--as-lora", fails=True)
    assert said in refused
    assert "--merge writes the whole model" in refused
