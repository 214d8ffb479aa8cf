"""The doctor's report: complete, without secrets, and honest about what is missing."""

from __future__ import annotations

import json
import re

import pytest

from mt_core.cli import doctor
from mt_core.cli.plugins import main
from mt_core.plugins.host import PluginHost
from mt_train.cli.train import main as train


def test_it_tells_what_an_issue_needs_and_hides_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a1" * 12)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for words in (
        "python",
        "torch",
        "deepspeed",
        "C++ compiler",
        "mt-plugin-llama 0.1.0",
        "operators",
        "OMP_NUM_THREADS",
    ):
        assert words in text
    assert text.endswith("problems:\n  none\n")
    assert "hf_a1" not in text
    assert re.search("HF_TOKEN +•••", text)


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == 1
    assert envelope["problems"] == []
    assert envelope["doctor"]["packages"]["torch"] != "not installed"


def test_a_missing_package_and_a_foreign_system_are_problems_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    report = doctor.examine(PluginHost.discover())
    report["packages"]["safetensors"] = "not installed"
    report["deepspeed"] = {"error": "ImportError: no"}
    report["plugins"]["mt-plugin-x 1.0"] = "failed: ImportError: y"
    monkeypatch.setattr("sys.platform", "win32")
    said = doctor.problems(report)
    assert len(said) == 4
    assert "pip install mt-core" in said[0]
    assert "WSL 2" in said[1]
    assert list(doctor.lines(report))[-4:] == [f"  {text}" for text in said]


def test_training_on_windows_is_refused_with_the_way_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert train(["--model", "kit-tiny", "--output", "none"]) == 2
    assert "does not train on Windows itself" in capsys.readouterr().err
