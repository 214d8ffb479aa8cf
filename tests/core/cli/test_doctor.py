"""The doctor's report: complete, without secrets, and honest about what is missing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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


def test_a_plugin_for_another_core_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    misfit = "it is for mt-core <0.1, and this is 0.1.0"
    monkeypatch.setattr(doctor, "out_of_range", lambda plugin: misfit if plugin.name == "llama" else "")
    report = doctor.examine(PluginHost.discover())
    assert doctor.problems(report) == [f"plugin mt-plugin-llama 0.1.0: misfit: {misfit}"]


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
    kit_model: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert train(["--model", "kit-tiny", "--output", "none"]) == 2
    assert "does not train on Windows itself" in capsys.readouterr().err


PLUGIN = """
from mt_core import hookimpl

@hookimpl
def mt_doctor():
    {}
"""


@pytest.fixture
def install_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a plugin whose ``mt_doctor`` has this body."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(body: str) -> None:
        info = tmp_path / "acme_health-1.0.dist-info"
        info.mkdir()
        (tmp_path / "acme_health.py").write_text(PLUGIN.format(body))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-health\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[mt_core.plugins]\nhealth = acme_health\n")

    yield install
    sys.modules.pop("acme_health", None)


def test_a_section_of_a_second_plugin_stands_beside_the_others(
    install_section: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install_section("return {'coolant': {'pump 1': '20 °C'}}")
    assert main(["doctor"]) == 0
    assert "coolant:\n  pump 1  20 °C\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no pump')", "ValueError: no pump"),
        ("return None", "mt_doctor has to return title → facts (name → value), got None"),
        ("return {'coolant': 3}", "mt_doctor has to return title → facts (name → value), got {'coolant': 3}"),
        ("return {3: {}}", "mt_doctor has to name titles and facts by text, got 3"),
        ("return {'coolant': {3: 'x'}}", "mt_doctor has to name titles and facts by text, got 3"),
        ("return {'devices': {}}", "mt_doctor offers the section 'devices', which is another's; choose another title"),
    ],
)
def test_a_plugin_that_fails_or_returns_nonsense_is_a_problem_with_its_name(
    install_section: Callable[[str], None], capsys: pytest.CaptureFixture[str], body: str, message: str
) -> None:
    install_section(body)
    assert main(["doctor"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    problems = text.partition(" problems: ")[2]
    assert "acme-health:health: " in problems
    assert message in problems
    assert "torch" in text, "the rest of the report is there"
