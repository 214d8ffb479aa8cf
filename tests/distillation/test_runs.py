"""Runs with a teacher from their config to their folder: what they learn, and what needs the teacher and what does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mt_core import CheckpointError, ConfigError, UsageError
from mt_core.plugins.host import PluginHost
from mt_train import load_run, train
from mt_train.plugins.resolve import resolve

SMALL = {"name": "llama", "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 48}


def raw_of(teacher: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": SMALL,
        "objective": {"name": "distill-pretrain", "teacher_path": str(teacher), **more.pop("objective", {})},
        "data": {"eval": 2},
        "train": {
            "steps": 2,
            "sequence_len": 32,
            "micro_batch_size": 4,
            "global_batch_size": 4,
            **more.pop("train", {}),
        },
        "eval": {"samples": 0},
        "log": {"console_level": "error", "every_steps": 1},
        **more,
    }


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def student(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A student's run, and a copy of the teacher that it learned from."""
    folder = tmp_path_factory.mktemp("student")
    shutil.copytree(teacher, folder / "teacher")
    train(raw_of(folder / "teacher"), output=folder / "run")
    return folder / "run", folder / "teacher"


def test_listing_loads_no_torch() -> None:
    code = "import sys, mt_plugin_distillation.plugin; assert not {'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("divergence", ["forward-kl", "jsd"])
def test_a_student_that_is_its_teacher_has_no_loss_and_no_gradient(
    divergence: str, teacher: Path, tmp_path: Path
) -> None:
    """At weight 1 in step 0; the optimizer moves nothing then."""
    model = {"name": "llama", "dim": 48, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 64}
    raw = raw_of(
        teacher,
        objective={"weight": 1.0, "divergence": divergence},
        model={**model, "overlay": str(teacher / "checkpoints/step-00000008/model")},
        optimizer={"name": "adamw", "lr": 1e-9, "weight_decay": 0.0},
    )
    train(raw, output=tmp_path / "run")
    for record in records(tmp_path / "run"):
        assert abs(record["loss"]) < 1e-6
        assert record["grad_norm"] < 1e-5
        assert record["cross_entropy"] > 1


def test_a_students_run_is_read_without_the_teacher_and_goes_on_with_the_same_one_alone(
    student: tuple[Path, Path],
) -> None:
    run, teacher = student
    away = teacher.rename(teacher.with_name("away"))
    try:
        assert load_run(run).model is not None
        with pytest.raises(UsageError, match="is no folder; give one of whole weights"):
            train({"train": {"steps": 3}}, resume=run)
    finally:
        away.rename(teacher)
    manifest = next(teacher.glob("checkpoints/*/manifest.json"))
    before = manifest.read_bytes()
    train({"train": {"steps": 3}}, resume=run)
    assert [each["step"] for each in records(run)] == [1, 2, 3]
    latest = teacher / "checkpoints/latest"
    shutil.copytree(manifest.parent, manifest.parent.with_name("step-00000009"))
    (manifest.parent.with_name("step-00000009") / "manifest.json").write_bytes(before + b" ")
    latest.write_text("step-00000009")
    with pytest.raises(CheckpointError, match="is another one than in the run that saved the checkpoint"):
        train({"train": {"steps": 4}}, resume=run)
    latest.write_text("step-00000008")
    with pytest.raises(ConfigError, match=r"objective.teacher-path: is .*, and .* in the run"):
        train({"train": {"steps": 4}, "objective": {"teacher_path": str(run)}}, resume=run)


def test_the_best_checkpoint_of_gkd_is_that_with_the_lowest_divergence(teacher: Path) -> None:
    """Held-out prompts have no loss."""
    host = PluginHost.discover()
    raw = {"model": SMALL, "objective": {"name": "gkd", "teacher_path": str(teacher)}}
    assert resolve(raw, host).config.checkpoint.best == "eval_answer_divergence:min"
    with pytest.raises(ConfigError, match="answers have a divergence and no loss"):
        resolve({**raw, "checkpoint": {"best": "eval_loss:min"}}, host)


@pytest.mark.needs("mt-plugin-llama")
def test_a_run_without_a_teacher_has_no_use_for_the_check(tmp_path: Path) -> None:
    raw = raw_of(tmp_path)
    with pytest.raises(UsageError, match="the objective of the run has no teacher; leave the callback out"):
        train({**raw, "objective": "pretrain", "callbacks": ["teacher-check"]}, output=tmp_path / "run")
