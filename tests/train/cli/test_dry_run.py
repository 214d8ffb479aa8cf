"""``mt-train --dry-run`` says what would run, or every reason why it would not, and touches nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from mt_train.cli.train import main

LLAMA = ("--model", "llama", "--dry-run")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def plan_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*LLAMA, "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*LLAMA, *words]) in (1, 2)
    return capsys.readouterr().err


def test_the_plan_is_printed_and_nothing_is_written(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA, "--nproc-per-node", "4", "--parallel.pipeline", "2", "--output", "runs/never"]) == 0
    out = capsys.readouterr().out
    for text in (
        "783,488, of which 783,488 are trained",
        "4 ranks on CPUs",
        "2 stages × 2 ranks × 8 rows × 1 micro-batches = 16 rows a step, ZeRO 1, fp32",
        "16 rows of 256 tokens = 4,096 tokens a step",
        "400 optimizer steps",
        "embedding, blocks 0–1",
        "blocks 2–3, norm, head",
        "on ranks 2–3",
        "memory a rank, MiB",
        "activations*",
        "estimate",
        "nothing was started",
    ):
        assert text in out, text
    assert list(empty_folder.iterdir()) == []


def test_ranks_that_divide_experts_hold_a_part_of_them_and_are_told_what_tokens_may_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of 8 experts in each of 4 blocks, three matrices of 128 × 96 each, two ranks have 4: half of 1,179,648 numbers."""
    mixture = ("--model", "qwen", "--model.variant", "3-tiny-moe", "--model.expert-dim", "96", "--dry-run")
    shape = ("--nproc-per-node", "4", "--parallel.zero-stage", "1", "--train.dtype", "fp32")
    found = []
    for size in ("1", "2"):
        assert main([*mixture, *shape, "--json", "--parallel.expert", size]) == 0
        found.append(json.loads(capsys.readouterr().out))
    (whole,), (divided,) = (each["stages"] for each in found)
    numbers = 4 * 8 * 3 * 128 * 96
    assert whole["parameters"] == divided["parameters"]
    assert whole["memory"]["weights"]["device"] - divided["memory"]["weights"]["device"] == 4 * numbers // 2
    assert divided["memory"]["optimizer"]["device"] == pytest.approx(whole["memory"]["optimizer"]["device"], rel=1e-3)
    rows = 8 * 256 * 2
    assert (found[0]["experts"], found[1]["experts"]["here"]) == (None, 4)
    assert (found[1]["experts"]["rows"], found[1]["experts"]["most_rows"]) == (rows, 2 * rows)
    assert main([*mixture, *shape, "--parallel.expert", "2"]) == 0
    out = capsys.readouterr().out
    assert "4 ranks × 8 rows × 1 micro-batches = 32 rows a step, ZeRO 1, fp32, experts divided among 2 ranks" in out
    assert "4 of 8 on each rank: 4,096 rows a layer where their load is even, at worst 8,192, 4.0 MiB" in out


def test_a_thousand_ranks_share_what_two_do(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--parallel.zero-stage", "3", "--train.dtype", "bf16")
    two = plan_of(capsys, "--nproc-per-node", "2", *shape)
    many = plan_of(capsys, "--nproc-per-node", "8", "--nnodes", "125", *shape)
    assert (two["ranks"], many["ranks"]) == (2, 1000)
    assert many["batch"]["rows"] == 500 * two["batch"]["rows"]
    held = [about["stages"][0]["memory"]["optimizer"]["device"] for about in (two, many)]
    assert held[0] == pytest.approx(12 * two["parameters"]["total"] / 2, rel=0.01)  # a master and two moments in fp32
    assert held[1] == pytest.approx(12 * two["parameters"]["total"] / 1000, rel=0.05)


def test_rows_are_as_long_as_they_are_padded(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = empty_folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "p" * n, "response": "r" * n}) + "\n" for n in range(1, 21)))
    words = ("--objective", "sft", "--dataset", "jsonl", "--dataset.path", str(rows), "--data.eval", "none")
    for multiple, tokens in ((1, 42), (8, 48), (32, 64), (300, 256)):
        batch = plan_of(capsys, *words, "--data.pad-multiple", str(multiple))["batch"]
        assert batch["row_tokens"] == tokens, "20 and 20 letters, begin and end"


def test_the_plan_of_another_launcher_counts_its_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert plan_of(capsys, "--parallel.pipeline", "3")["ranks"] == 6


def test_stages_have_every_layer_once_and_all_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    about = plan_of(capsys, "--nproc-per-node", "7", "--parallel.pipeline", "7")
    assert [stage["layers"] for stage in about["stages"]] == [
        "embedding",
        *(f"block {number}" for number in range(4)),
        "norm",
        "head",
    ]
    assert sum(stage["parameters"] for stage in about["stages"]) == about["parameters"]["total"]


def test_an_offloaded_optimizer_is_in_the_hosts_memory(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--parallel.zero-stage", "1", "--parallel.offload", "optimizer")
    held = plan_of(capsys, *words)["stages"][0]["memory"]["optimizer"]
    assert held["device"] == 0
    assert held["host"] > 0
    assert main([*LLAMA, *words]) == 0
    assert "host, each rank" in capsys.readouterr().out


def test_faults_of_folder_layout_rows_and_weights_come_at_once(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty_folder / "rows.jsonl").write_text('{"body": "a"}\n')
    said = refusal(
        capsys,
        *("--dataset", "jsonl", "--dataset.path", "rows.jsonl"),
        *("--model.overlay", "none.safetensors", "--train.dtype", "fp16", "--output", "."),
    )
    assert "4 faults" in said
    assert "already exists and is not empty" in said
    assert "fp16 does not train on a CPU" in said
    assert "rows.jsonl" in said
    assert "none.safetensors" in said
    assert "Nearest that works: --train.dtype auto" in said


def test_a_layout_is_refused_before_torch_is_loaded_and_any_process_starts(empty_folder: Path) -> None:
    code = (
        "import sys; from mt_train.cli.train import main\n"
        "for more in ([], ['--dry-run']):\n"
        "    assert main(['--model', 'llama', '--nproc-per-node', '3', '--parallel.pipeline', '2', *more]) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Nearest that works: --parallel.pipeline 3, or 4 processes") == 2
    assert done.stderr.count("error") == 2
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize("words", [("--nnodes", "2"), ("--json",), ("--plot", "rates.png")])
def test_what_belongs_to_a_dry_run_is_refused_without_one(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", "llama", "--output", "none", *words]) == 2
    assert f"{words[0]} goes with --dry-run only" in capsys.readouterr().err


def test_a_bad_number_of_nodes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--nnodes takes a number from 1 to 100,000, got '0'" in refusal(capsys, "--nnodes", "0")


def test_seeds_are_planned_once(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA, "--train.seeds", "1,2"]) == 0
    assert capsys.readouterr().out.count("layout") == 1
    assert list(empty_folder.iterdir()) == []


def test_the_rate_and_the_groups_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--train.steps", "100", "--optimizer.lr", "0.01", "--schedule.warmup-steps", "20")
    about = plan_of(capsys, *words)
    rates = {each["step"]: each["lr"] for each in about["rates"]}
    assert (min(rates), max(rates)) == (1, 100)
    assert rates[1] == pytest.approx(0.01 / 21)
    assert rates[100] == pytest.approx(0.001)
    assert [(group["name"], group["tensors"]) for group in about["groups"]] == [("decay", 30), ("no_decay", 9)]
    assert sum(group["numbers"] for group in about["groups"]) == about["parameters"]["trained"]
    assert main([*LLAMA, *words]) == 0
    out = capsys.readouterr().out
    assert "no_decay: 9 tensors, 1,152 numbers, rate 0.01, weight decay 0" in out
    assert "\ntrained " not in out
    curve = next(line for line in out.splitlines() if line.startswith("rate ")).split()[1]
    assert curve.count("█") >= 1
    assert (curve[0], curve[-1]) == ("▁", "▂")


def test_names_of_what_is_trained_are_planned_and_shown_where_keys_choose_among_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--train.steps", "1", "--train.disable", '["*proj*", "*embed*", "lm_head*", "*.1.*"]')
    names = plan_of(capsys, *words)["trained"]["names"]
    assert names == [f"model.layers.{{0,2..3}}.{norm}layernorm.weight" for norm in ("input_", "post_attention_")] + [
        "model.norm.weight"
    ]
    assert main([*LLAMA, *words]) == 0
    assert f"\ntrained    {', '.join(names)}\n" in capsys.readouterr().out


def test_a_pattern_of_parameters_that_matches_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("--train.disable", "--train.enable", "--optimizer.no-decay"):
        said = refusal(capsys, key, '["*embd*"]')
        assert f"{key[2:].replace('-', '_')}: '*embd*' matches none of 39 parameters" in said
    assert "leaves no parameter to train" in refusal(capsys, "--train.disable", '["*"]')


def test_the_rates_are_drawn_for_each_group(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn is what the run would use: every step, each rate once, its way up and its end."""
    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: drawn.append(figure))
    words = ("--train.steps", "100", "--optimizer.lr", "0.01", "--schedule.warmup-steps", "20", "--optimizer.rates")
    assert main([*LLAMA, *words, '{"*embed*": {scale: 0.1}}', "--plot", "rates.png"]) == 0
    assert [path.name for path in empty_folder.iterdir()] == ["rates.png"]
    axes = drawn[0].axes[0]
    high, low, last = axes.lines
    assert high.get_xdata().tolist() == list(range(1, 101))
    assert high.get_ydata()[[0, 20, 99]].tolist() == pytest.approx([0.01 / 21, 0.01, 0.001])
    assert low.get_ydata().tolist() == pytest.approx((high.get_ydata() / 10).tolist())
    assert last.get_ydata() == pytest.approx([0.001, 0.001])
    said = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert said[0] == "0.01: decay, no_decay"
    assert said[1].startswith("0.001: ")
    assert said[2:] == ["warm-up: 20 updates", "last update: 0.001 (10 % of the base rate)"]


def test_a_picture_is_a_png_in_a_folder_that_is_there(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA, "--plot", "rates.png"]) == 0
    assert (empty_folder / "rates.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert "--plot writes a PNG, got 'rates.pdf'" in refusal(capsys, "--plot", "rates.pdf")
    assert "not there is no folder" in refusal(capsys, "--plot", "not there/rates.png")
    assert len(list(empty_folder.iterdir())) == 1
