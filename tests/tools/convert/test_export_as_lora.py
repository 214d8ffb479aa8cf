"""What an adapter changes, as a LoRA that peft opens, over transformers' model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapter_folders import of_folder, of_run, theirs

from mt_tools.convert.adapter_lora import EXACT, factors

RUNS = {
    "pissa": ("--adapter.rank", "4"),
    "olora": ("--adapter.rank", "4", "--adapter.ranks", "{mlp.up_proj: 2}"),
    "milora": ("--adapter.rank", "4"),
    "lora-ga": ("--adapter.rank", "2"),
    "moslora": ("--adapter.rank", "4"),
}
TWICE = {"pissa", "olora", "milora", "lora-ga"}
"""Those that take directions off the weight: theirs at the start and theirs now."""


@pytest.mark.parametrize("name", RUNS)
def test_peft_opens_it_with_the_logits_of_the_run_and_so_do_we(
    name: str, train: Callable[..., Path], pretrained_folder: Path, export: Callable[..., str], tmp_path: Path
) -> None:
    """To what is left out of the change and the rounding of a sum of weights: 1e-4 of logits around 1."""
    run, out = train("--adapter", name, *RUNS[name], lr="1e-1"), tmp_path / "out"
    said = export("--run", run, "--output", out, "--as-lora")
    assert f"adapter {name} as a LoRA" in said
    assert "100.0% of the likeliest tokens are the same" in said
    assert "partial" not in said, "the folder that is verified is nothing to the user"
    want = of_run(run)
    assert (want - theirs(pretrained_folder)).abs().max() > 1e-2
    torch.testing.assert_close(theirs(pretrained_folder, out), want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(of_folder(pretrained_folder, out), want, atol=1e-4, rtol=1e-4)
    config = json.loads((out / "adapter_config.json").read_text())
    rank = int(RUNS[name][1])
    assert config["r"] == config["lora_alpha"] <= (2 * rank if name in TWICE else rank)
    assert config["base_model_name_or_path"] is None, "a path of this machine is no name"


def test_what_has_no_low_rank_asks_for_one_and_is_compared(
    train: Callable[..., Path], export: Callable[..., str], tmp_path: Path
) -> None:
    run = train("--adapter", "sinelora", lr="1e-1")
    words = ("--run", run, "--output", tmp_path / "out")
    assert "name how many directions to keep (--as-lora RANK)" in export(*words, "--as-lora", fails=True)
    refused = export(*words, "--as-lora", "1", "--tolerance", "1e-6", fails=True)
    assert "nothing is written: logits differ from the run by" in refused
    assert "A higher --as-lora RANK may come nearer" in refused
    assert not (tmp_path / "out").exists()
    assert "as a LoRA" in export(*words, "--as-lora", "12", "--tolerance", "9")
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["r"] == 12


@pytest.mark.parametrize(
    ("adapter", "words", "says"),
    [
        ("bitfit", ("--adapter.add", "true"), "changes the bias of"),
        ("lora-moe", (), "no weights can stand for"),
        ("lora", ("--train.enable", "*norm*"), "has trained other weights besides"),
        ("lora", ("--quantizer", "nf4"), "ran over quantized weights"),
    ],
)
def test_what_a_lora_cannot_stand_for_is_refused_with_what_can(
    adapter: str,
    words: tuple[str, ...],
    says: str,
    train: Callable[..., Path],
    export: Callable[..., str],
    tmp_path: Path,
) -> None:
    run = train("--adapter", adapter, *words)
    assert says in export("--run", run, "--output", tmp_path / "out", "--as-lora", fails=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--tokenizer.add-special-tokens", "<x>,<y>"), "model.vocab_size (282, and there 280)"),
        (("--model.rope-theta", "100"), "model.rope_theta (100.0, and there 10000.0)"),
    ],
)
def test_what_a_run_has_changed_of_its_base_is_compared_and_told(
    words: tuple[str, ...], says: str, train: Callable[..., Path], export: Callable[..., str], tmp_path: Path
) -> None:
    run = train("--adapter", "lora", *words)
    said = export("--run", run, "--output", tmp_path / "lora", "--as-lora")
    assert "100.0% of the likeliest tokens are the same" in said
    assert f"the run has set {says} otherwise than the files of its base" in said
    assert says in export("--run", run, "--output", tmp_path / "adapter")
    plain = train("--adapter", "lora")
    assert "the run has set" not in export("--run", plain, "--output", tmp_path / "plain")


def test_it_goes_with_one_run_and_no_merge(export: Callable[..., str], tmp_path: Path) -> None:
    words = ("--run", tmp_path, "--output", tmp_path / "out")
    assert "give no --merge" in export(*words, "--as-lora", "--merge", fails=True)
    assert "a RANK from 1 on" in export(*words, "--as-lora", "-1", fails=True)


@pytest.mark.parametrize(("shape", "rank"), [((40, 70), 3), ((70, 40), 29), ((20, 20), 20)])
def test_the_rank_is_the_least_that_leaves_out_no_more_than_it_may(shape: tuple[int, int], rank: int) -> None:
    made = torch.Generator().manual_seed(1)
    change = torch.randn(shape[0], rank, generator=made) @ torch.randn(rank, shape[1], generator=made)
    a_RE, b_FR = factors(change, None)
    assert len(a_RE) == rank == b_FR.shape[1]
    assert (change - b_FR @ a_RE).norm() <= EXACT * change.norm()
    best = torch.linalg.svdvals(change.double())
    a_RE, b_FR = factors(change, 2)
    apart = (change - b_FR @ a_RE).double().norm()
    assert apart <= best[2:].norm() * 1.001, "no two directions come nearer (Eckart and Young)"


def test_a_layer_that_has_not_changed_has_a_factor_of_zeros() -> None:
    a_RE, b_FR = factors(torch.zeros(6, 4), None)
    assert (a_RE.shape, b_FR.shape) == ((1, 4), (6, 1))
    assert not (b_FR @ a_RE).any()
