"""``mt-train --dry-run --gpu``: whether a run fits, what makes it fit, and the fastest layouts of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_train.cli.fit import format_changes
from mt_train.cli.train import main

RUN = (
    "--model",
    "llama",
    "--model.max-seq-len",
    "65536",
    "--data.batching",
    "packing",
    "--train.steps",
    "100",
    "--dry-run",
)
LARGE = (
    *("--model.dim", "2048", "--model.n-layers", "10", "--model.n-heads", "16", "--model.ffn-dim", "8192"),
    *("--train.sequence-len", "4096", "--train.micro-batch-size", "32", "--nproc-per-node", "4"),
)
"""More than half a billion parameters, and too many rows at a time for a GPU of 80 GB."""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def plan_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*RUN, "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def with_options(words: tuple[str, ...], changes: dict[str, Any]) -> list[str]:
    """The words with those that are printed for some keys, which may stand there once."""
    printed = format_changes(changes).split()
    kept = [word for pair in zip(words[::2], words[1::2], strict=True) if pair[0] not in printed for word in pair]
    return [*kept, *printed]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpu", "h100"), "Did you mean h100-80g or h100-pcie-80g"),
        (("--gpu", "h100-80g", "--network", "0"), "--network takes a number above 0"),
        (("--gpu", "h100-80g", "--network", "nan"), "--network takes a number above 0"),
        (("--gpu", "h100-80g", "--host-memory", "-1"), "--host-memory takes a number above 0"),
        (("--plan",), "--plan needs to know the GPUs: add --gpu NAME"),
        (("--network", "400"), "--network needs to know the GPUs"),
        (("--gpu", "h100-80g", "--plan", "--nnodes", "2"), "add --network GBIT"),
        (("--gpu", "h100-80g", "--nproc-per-node", "auto"), "give the number of the nodes"),
    ],
)
def test_what_is_missing_or_cannot_be_is_said(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--gpu=h100-80g", "--plan", "--network=400", "--host-memory=100"])
def test_machines_go_with_a_dry_run_only(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = option.split("=")
    assert main(["--model", "llama", *words]) == 2
    assert f"{words[0]} goes with --dry-run only" in capsys.readouterr().err


def test_a_run_that_fits_says_so_with_its_longest_row_and_five_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu", "h200-141g", "--nproc-per-node", "4", "--nnodes", "2", "--network", "400", "--plan")
    assert main([*RUN, *words, "--train.global-batch-size", "64", "--train.micro-batch-size", "1"]) == 0
    out = capsys.readouterr().out
    for text in (
        "8 ranks on GPUs",
        "fits        ",
        "of 140.4 GiB a rank on h200-141g, 10% kept free",
        "longest row",
        "that the model knows",
        "fastest layouts",
        "5, bound by",
        "--train.micro-batch-size",
        "smaller than any model",
        "ours\non one H200 were up to 15 % slower",
    ):
        assert text in out, text


def test_a_gpu_and_products_without_published_runs_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--gpu", "l40s-48g", "--plan", "--train.matmul", "fp8"]) == 0
    out = capsys.readouterr().out
    assert "no published run of this GPU" in out
    assert "counted for products in bf16" in out


@pytest.mark.parametrize("batching", ["padding", "packing"])
def test_times_of_rows_padded_to_a_much_longer_one_say_so(batching: str, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = [20] * 40 + [400]
    Path("rows.jsonl").write_text(
        "".join(json.dumps({"text": f"{n:03d}" + "a" * size}) + "\n" for n, size in enumerate(lengths))
    )
    words = ("--model", "llama", "--dataset", "jsonl", "--dataset.path", "rows.jsonl", "--data.eval", "none")
    words += ("--train.sequence-len", "512", "--train.steps", "10", "--data.batching", batching)
    assert main([*words, "--dry-run", "--gpu", "h100-80g", "--plan"]) == 0
    out = capsys.readouterr().out
    assert ("counted for rows padded to the longest of all, 408 tokens; they have 34 on average" in out) == (
        batching == "padding"
    )


def test_rows_of_an_objective_that_collects_answers_have_the_longest_ones(
    capsys: pytest.CaptureFixture[str], needs: Callable[[str], None]
) -> None:
    needs("mt-plugin-alignment")
    Path("rows.jsonl").write_text("".join(json.dumps({"prompt": f"{n:03d}", "answer": "4"}) + "\n" for n in range(20)))
    words = (
        "--model",
        "llama",
        "--dataset",
        "jsonl",
        "--dataset.path",
        "rows.jsonl",
        "--objective",
        "grpo",
        "--rewards",
        "exact",
    )
    words += ("--train.steps", "10", "--train.sequence-len", "512", "--dry-run", "--gpu", "h100-80g", "--plan")
    found = {}
    for tokens in (64, 256):
        assert main([*words, "--json", "--objective.max-new-tokens", str(tokens)]) == 0
        about = json.loads(capsys.readouterr().out)
        found[tokens] = about["batch"]["row_tokens"], about["stages"][0]["memory"]["activations"]["device"]
    assert found[256][0] - found[64][0] == 256 - 64
    assert found[256][1] > 2 * found[64][1]
    assert main([*words, "--objective.max-new-tokens", "64"]) == 0
    assert "without the time in which they are written" in capsys.readouterr().out


def test_a_run_that_is_too_large_fits_with_what_is_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    fit = plan_of(capsys, *LARGE, "--gpu", "h100-80g")["fit"]
    assert not fit["fits"]
    assert fit["needed"] > fit["gpu_memory"]
    assert len(fit["fixes"]) >= 2
    for fix in fit["fixes"][:2]:
        again = plan_of(capsys, *with_options((*LARGE, "--gpu", "h100-80g"), fix["changes"]))["fit"]
        assert again["fits"], fix
        assert again["needed"] == fix["needed"]


def test_the_verdict_of_a_run_that_is_too_large_names_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, *LARGE, "--gpu", "h100-80g"]) == 0
    out = capsys.readouterr().out
    assert "too large   " in out
    assert "fits with   --train.micro-batch-size 16 --train.global-batch-size 128" in out
    assert "\nor          --train.activation-checkpointing true" in out


def test_a_layout_that_is_printed_is_one_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*LARGE, "--gpu", "h100-80g", "--train.global-batch-size", "128")
    found = plan_of(capsys, *words, "--plan")
    best = found["layouts"]["fastest"][0]
    assert sum(best["shares"].values()) == pytest.approx(1)
    assert best["days"] == pytest.approx(100 * best["step_seconds"] / 86_400)
    again = plan_of(capsys, *with_options(words, best["changes"]))
    assert again["layout"] == best["layout"]
    assert again["fit"]["memory"] == best["memory"]


def test_offload_is_measured_against_the_memory_of_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu", "h100-80g", "--parallel.offload", "optimizer")
    assert plan_of(capsys, *words)["fit"]["fits"]
    fit = plan_of(capsys, *words, "--host-memory", "0.001")["fit"]
    assert not fit["fits"]
    assert fit["host_needed"] > fit["host_memory"]
