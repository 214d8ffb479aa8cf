"""A stranger's model: built as a wheel, installed beside the core, and trained by name; its own tests compare two processes with one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mt_train.tracking.metrics import MetricsFile

ROOT = Path(__file__).parents[2]


PIP = [sys.executable, "-m", "pip", "-q"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: in place, setuptools would pack what an earlier build left behind."""
    folder = tmp_path_factory.mktemp("stranger")
    leftovers = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT / "examples/hello_plugin", folder / "source", ignore=leftovers)
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    subprocess.run(build, check=True, timeout=600)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path) -> dict[str, str]:
    target = wheel.parent / "site"
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    return {**os.environ, "PYTHONPATH": str(target)}


def train(folder: Path, environment: dict[str, str], *words: str) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "mt_train.cli.train", "--model", "gated-conv", *words, "--output", str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert result.returncode == 0, result.stderr
    return MetricsFile(folder / "metrics.jsonl").read()


def test_the_wheel_holds_the_package_its_types_and_its_licence_only(wheel: Path) -> None:
    info = "mt_plugin_hello-0.1.0.dist-info"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(f"{info}/")}
    assert names == {
        f"mt_plugin_hello/{name}" for name in ("__init__.py", "config.py", "model.py", "plugin.py", "py.typed")
    }
    assert f"{info}/licenses/LICENSE" in zipfile.ZipFile(wheel).namelist()


def test_its_loss_falls_in_fifty_steps(environment: dict[str, str], tmp_path: Path) -> None:
    records = train(tmp_path / "run", environment, "--train.steps", "50")
    assert records[-1]["loss"] < records[0]["loss"] - 0.3
    command = [sys.executable, "-m", "mt_tools.cli.generate", "--run", str(tmp_path / "run"), "--prompt", "The "]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
