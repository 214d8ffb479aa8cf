"""The first command of the README, as a new user gives it; and the same from two wheels in an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import forked_starts
import pytest
import torch

from mt_train.checkpoint.store import find, verify
from mt_train.tracking.metrics import MetricsFile

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
TAKING = {"mt-core", "mt-plugin-llama", "mt-plugin-standard", "mt-train"}
"""Distributions that take part in such a run."""
GOALS = {400: 1.9, 100: 2.85}
"""Steps → nats per byte on held-out text; a model that knows only how often each byte occurs has about 3. The command has 400 steps."""


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    home = {"HOME": str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    # Where bytecode is, and libraries on a hosted runner: without them each command would compile torch anew, and none could be forked.
    home |= forked_starts.import_time_environment({name: os.environ[name] for name in os.environ if name not in home})
    return subprocess.run(
        command, cwd=folder, env={**home, **environment}, capture_output=True, text=True, timeout=1500, check=False
    )


def train_at_first(folder: Path, *options: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """``.venv/bin/mt-train --model llama`` by its path: an empty PATH, so no compiler, and no activated environment."""
    result = run([str(SCRIPTS / "mt-train"), "--model", "llama", *options], folder, PATH="")
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "runs" / "llama-tiny-001", result


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The bare command, but for its steps: a quarter of them."""
    return train_at_first(tmp_path_factory.mktemp("user"), "--train.steps", "100")


def learns_english(run: Path, steps: int) -> bool:
    records = MetricsFile(run / "metrics.jsonl").read()
    assert 5.3 < records[0]["loss"] < 5.9
    assert verify(find(run))["step"] == steps
    return bool(records[-1]["eval_loss"] < GOALS[steps])


def test_a_quarter_of_the_first_run_learns_more_than_how_often_letters_occur(
    first_run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    assert learns_english(first_run[0], 100)


@pytest.mark.soak
def test_the_bare_command_learns_english_spelling_in_under_two_minutes(tmp_path: Path) -> None:
    assert learns_english(train_at_first(tmp_path)[0], 400)


def test_the_run_folder_is_complete(first_run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder = first_run[0]
    assert {path.name for path in folder.iterdir()} >= {
        "run.yaml",
        "plugins.lock.json",
        "metrics.jsonl",
        "tensorboard",
        "loss.png",
        "completed",
        "checkpoints",
    }
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "plugins.lock.json").read_text())["plugins"].keys() == TAKING


def test_it_says_what_it_trained_on_and_what_to_do_next(
    first_run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, result = first_run
    assert "demo corpus" in result.stderr
    assert "--dataset text --dataset.path FILE" in result.stderr
    assert "mt-generate --run runs/llama-tiny-001" in result.stdout
    assert "mt-train --resume runs/llama-tiny-001" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.soak
def test_every_process_count_and_launcher_trains_the_same(tmp_path: Path) -> None:
    """One launch each of others; our own is in tests/train/cli. What they compute is compared closely in tests/train/engine."""
    options = ["--model", "llama", "--train.steps", "3", "--train.global-batch-size", "16", "--eval.every-steps", "3"]
    path = f"{SCRIPTS}:{os.environ['PATH']}"
    launchers = {
        "one": [str(SCRIPTS / "mt-train")],
        "torchrun": [str(SCRIPTS / "torchrun"), "--nproc-per-node", "2", "-m", "mt_train.cli.train"],
        "deepspeed": [
            *(str(SCRIPTS / "deepspeed"), "--num_accelerators", "2", "--no_local_rank"),
            *("--module", "mt_train.cli.train"),
        ],
    }
    losses = {}
    for name, launcher in launchers.items():
        result = run([*launcher, *options, "--output", name], tmp_path, PATH=path, DS_ACCELERATOR="cpu")
        assert result.returncode == 0, (name, result.stdout, result.stderr)
        losses[name] = [record["loss"] for record in MetricsFile(tmp_path / name / "metrics.jsonl").read()]
    for name in launchers:
        assert losses[name] == pytest.approx(losses["one"], rel=1e-5), name


def test_a_resumed_command_writes_what_an_uninterrupted_one_writes(tmp_path: Path) -> None:
    """Three steps, three more after a resume, and six at once: equal losses, to the last bit."""
    base = [str(SCRIPTS / "mt-train"), "--model", "llama", "--model.dropout", "0.1", "--schedule", "constant"]
    options = ["--train.micro-batch-size", "2", "--train.global-batch-size", "4"]
    whole = run([*base, *options, "--train.steps", "6", "--output", "whole"], tmp_path, PATH="")
    part = run([*base, *options, "--train.steps", "3", "--output", "part"], tmp_path, PATH="")
    rest = run([base[0], "--resume", "part", "--train.steps", "6"], tmp_path, PATH="")
    assert [whole.returncode, part.returncode, rest.returncode] == [0, 0, 0], rest.stderr
    keys = ("step", "loss", "lr", "grad_norm", "tokens")
    records = {
        name: [[record[key] for key in keys] for record in MetricsFile(tmp_path / name / "metrics.jsonl").read()]
        for name in ("whole", "part")
    }
    assert records["whole"] == records["part"]
    again = run([base[0], "--resume", "part"], tmp_path, PATH="")
    assert again.returncode == 0
    assert "is completed" in again.stdout


def test_wheels_alone_give_the_same_command(tmp_path: Path) -> None:
    wheels, home = tmp_path / "wheels", tmp_path / "environment"
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels)]
    subprocess.run(
        [
            *build,
            *(
                str(ROOT / part)
                for part in (
                    "core",
                    "train",
                    "tools",
                    *(f"plugins/{name}" for name in ("standard", "gemma", "llama", "qwen")),
                )
            ),
        ],
        check=True,
        timeout=600,
    )
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    here = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    install = [
        *pip,
        "--python",
        str(python),
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        *map(str, wheels.glob("*.whl")),
    ]
    subprocess.run(install, check=True, timeout=600)
    outer = Path(torch.__file__).parents[1]
    (here / "outer.pth").write_text(f"{outer}\n")  # third-party packages; a plain path, so editable installs stay out
    where = run([str(python), "-c", "import mt_core, mt_plugin_llama; print(mt_core.__file__)"], tmp_path, PATH="")
    assert where.stdout.startswith(str(home)), where.stdout + where.stderr
    for plugin, size in (("gemma", "3-27b"), ("qwen", "2.5-72b")):
        listed = run([str(home / "bin/mt-plugins"), "info", plugin], tmp_path, PATH="")
        assert size in listed.stdout, listed.stdout + listed.stderr
    result = run([str(home / "bin/mt-train"), "--model", "llama", "--train.steps", "2"], tmp_path, PATH="")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "runs/llama-tiny-001/completed").exists()
