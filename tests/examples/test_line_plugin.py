"""The smallest plugin: installed, named, and its line is what a run prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mt_train.cli.train import main

SOURCE = Path(__file__).parents[2] / "examples/line_plugin/src"


def test_a_run_prints_the_line_of_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "site/mt_plugin_line-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mt-plugin-line\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[mt_core.plugins]\nline = mt_plugin_line\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(SOURCE)
    words = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "2", "--train.micro-batch-size", "2"]
    assert main([*words, "--task-print", "bits", "--task-print.digits", "2", "--output", "none"]) == 0
    assert re.search(r"step 2/2 \| loss \d\.\d\d bits \| held out \d\.\d\d bits \|", capsys.readouterr().out)


def test_the_examples_own_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SOURCE.parent)]
    result = subprocess.run(command, cwd=SOURCE.parent, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout[-3000:]
