"""A stranger's adapter: fewer than 60 lines, built as a wheel, installed beside the core, put through the kit, trained by name."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mt_train.tracking.metrics import MetricsFile

EXAMPLE = Path(__file__).parents[2] / "examples/hello_adapter"
PIP = [sys.executable, "-m", "pip", "-q"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With the wheel, built from a copy, in a folder of its own."""
    folder = tmp_path_factory.mktemp("stranger")
    source = shutil.copytree(
        EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    subprocess.run(build, check=True, timeout=600)
    site = str(folder / "site")
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", site, str(next(folder.glob("*.whl")))]
    subprocess.run(install, check=True, timeout=300)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))}


def output_of(environment: dict[str, str], *command: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, cwd=cwd, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_passes_the_kit_as_its_author_runs_it(environment: dict[str, str], tmp_path: Path) -> None:
    out = output_of(
        environment, "pytest", str(EXAMPLE / "tests"), "-q", "-p", "no:cacheprovider", "-o", "pythonpath=", cwd=tmp_path
    )
    assert " passed" in out
    assert "1 skipped" in out, "it has no option dropout, and everything else is checked"


def test_it_trains_by_name_and_its_help_shows_its_options(environment: dict[str, str], tmp_path: Path) -> None:
    words = ["mt_train.cli.train", "--model", "llama", "--model.n-layers", "1", "--adapter", "parallel"]
    page = output_of(environment, *words, "--help", cwd=tmp_path)
    assert "--adapter.width" in page
    assert "inner units of each adapter" in page
    short = ["--adapter.width", "4", "--train.steps", "2", "--train.micro-batch-size", "2", "--output", "run"]
    output_of(environment, *words, *short, cwd=tmp_path)
    assert len(MetricsFile(tmp_path / "run/metrics.jsonl").read()) == 2


def test_it_is_shorter_than_sixty_lines_of_code() -> None:
    """Docstrings, comments and empty lines apart."""
    assert sum(code_lines(path) for path in (EXAMPLE / "src").rglob("*.py")) < 60


def code_lines(path: Path) -> int:
    tree = ast.parse(path.read_text())
    words = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(path.read_text().splitlines(), start=1)
    return sum(1 for number, line in lines if line.split("#")[0].strip() and number not in words)
