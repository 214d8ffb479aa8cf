"""``mt-plugins freeze``, ``install`` and ``uninstall``: exact pins, and which installer is started with what."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mt_core import __version__
from mt_core.cli import plugins_install
from mt_core.cli.plugins import main
from mt_core.cli.plugins_install import pin
from mt_core.plugins.metadata import FILE, FOLDER, Selection, find_plugins

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def started_commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been started; each ends with 0."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def without_pip(monkeypatch: pytest.MonkeyPatch, uv: str | None) -> None:
    monkeypatch.setattr(plugins_install.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(plugins_install.shutil, "which", lambda name: uv)


def test_install_starts_pip_of_this_very_python(started_commands: list[list[str]]) -> None:
    assert main(["install", "mt-plugin-x==1.0", "-e", "./mine", "-U"]) == 0
    assert started_commands == [
        [sys.executable, "-m", "pip", "install", "--upgrade", "mt-plugin-x==1.0", "-e", "./mine"]
    ]


def test_without_pip_it_is_uv_for_this_python(
    started_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pip(monkeypatch, "/bin/uv")
    assert main(["install", "x"]) == 0
    assert main(["uninstall", "llama"]) == 0
    assert started_commands == [
        ["/bin/uv", "pip", "install", "--python", sys.executable, "x"],
        ["/bin/uv", "pip", "uninstall", "--python", sys.executable, "mt-plugin-llama"],
    ]


def test_without_either_the_line_to_type_is_printed(
    started_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    without_pip(monkeypatch, None)
    assert main(["install", "mt-plugin-x>=1"]) == 1
    assert f"type: pip --python {sys.executable} install 'mt-plugin-x>=1'" in capsys.readouterr().err
    assert started_commands == []


def test_uninstall_takes_a_plugin_by_either_of_its_names_once(started_commands: list[list[str]]) -> None:
    assert main(["uninstall", "llama", "mt_plugin_llama", "optim"]) == 0
    assert started_commands == [
        [sys.executable, "-m", "pip", "uninstall", "--yes", "mt-plugin-llama", "mt-plugin-optim"]
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["uninstall", "lama"], "no installed plugin is named 'lama'. Did you mean 'llama'?"),
        (["uninstall", "standard"], "'standard' is of mt-plugin-standard, without which no plugin works"),
        (["uninstall", "mt-train"], "'mt-train' is of mt-train, without which no plugin works"),
        (["install"], "nothing to install"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_started(
    words: list[str], said: str, started_commands: list[list[str]], capsys: Captured
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert started_commands == []


def test_an_installer_that_fails_is_the_end_with_its_code(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **options: SimpleNamespace(returncode=3))
    assert main(["install", "x"]) == 1
    assert "pip install x ended with 3" in capsys.readouterr().err


def test_freeze_pins_each_plugin_once_and_a_folder_as_such(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MT_PLUGINS", "llama")
    assert main(["freeze"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3, "what is built in, and the one that is allowed"
    known = {plugin.name: plugin for plugin in find_plugins(Selection())}
    assert lines == [pin(known[name]) for name in ("llama", "standard", "train")]
    core = known["standard"]._replace(distribution="mt-core", editable=False, origin="")
    assert pin(core) == f"mt-core=={__version__}"
    assert pin(core._replace(editable=True)) == f"-e {core.location}  # mt-core=={__version__}"
    assert pin(core._replace(origin="git+https://x.org/core@abc")) == "mt-core @ git+https://x.org/core@abc"
    for origin in (FOLDER, FILE):  # an index may have somebody else's under that name
        line = f"# mt-core=={__version__} was installed from {origin}: install it from there"
        assert pin(core._replace(origin=origin)) == line


def test_freeze_of_a_run_is_what_took_part_in_it(tmp_path: Path, capsys: Captured) -> None:
    assert main(["freeze", str(tmp_path)]) == 2
    assert "has no plugins.lock.json" in capsys.readouterr().err
    lock = {"core": "0.1.0", "plugins": {"mt-core": "0.1.0", "x": "2"}, "libraries": {"torch": "2.9.0"}}
    (tmp_path / "plugins.lock.json").write_text(json.dumps(lock))
    assert main(["freeze", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pins"] == ["mt-core==0.1.0", "x==2", "torch==2.9.0"]
    lock["libraries"]["torch"] = "2.9.0+cu130"
    (tmp_path / "plugins.lock.json").write_text(json.dumps(lock))
    assert main(["freeze", str(tmp_path)]) == 0
    index, *pins = capsys.readouterr().out.splitlines()
    assert index == "--extra-index-url https://download.pytorch.org/whl/cu130", "PyPI has no build with a label"
    assert pins == ["mt-core==0.1.0", "x==2", "torch==2.9.0+cu130"]
    lock |= {"editable": ["mt-core"], "origins": {"x": "https://x.org/x-2.whl"}}
    (tmp_path / "plugins.lock.json").write_text(json.dumps(lock))
    assert main(["freeze", str(tmp_path)]) == 0
    torch, core, x = capsys.readouterr().out.splitlines()[1:]
    assert torch == "torch==2.9.0+cu130"
    assert core == "# mt-core==0.1.0 was installed from a folder: install it from there"
    assert x == "# x==2 was installed from https://x.org/x-2.whl: install it from there", "the address may be anybody's"


@pytest.mark.parametrize("option", [["--json"], ["--block-plugin", "llama"]])
def test_the_installer_takes_no_option_that_would_do_nothing(
    option: list[str], started_commands: list[list[str]], capsys: Captured
) -> None:
    for words in (["install", "x"], ["uninstall", "llama"]):
        with pytest.raises(SystemExit):
            main([*words, *option])
        assert "unrecognized arguments" in capsys.readouterr().err
    assert started_commands == []
