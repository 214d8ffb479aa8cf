"""What the README shows, works. Its first two commands run whole in test_first_run.py and in .ci/run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mt_core.cli.generate import main as mt_generate
from mt_core.cli.plugins import main as mt_plugins
from mt_core.cli.train import main as mt_train

PAGES = [Path(__file__).parents[2] / name for name in ("README.md", "plugins/llama/README.md")]
COMMANDS = [
    line.partition("  #")[0].strip()
    for page in PAGES
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("mt-")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at ``runs/first``, as the tour makes it, but of two steps."""
    folder = tmp_path_factory.mktemp("tour")
    words = ["--model", "llama", "--train.steps", "2", "--model.n-layers", "1", "--output", str(folder / "runs/first")]
    assert mt_train(words) == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_is_understood(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    name, *words = shlex.split(command)
    if name == "mt-train":
        if "FOLDER" in words:
            pytest.skip("needs pretrained weights; tests/llama/test_formats.py trains from such a folder")
        assert mt_train([*words, "--print-config"]) == 0, capsys.readouterr().err
    else:
        assert {"mt-generate": mt_generate, "mt-plugins": mt_plugins}[name](words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_the_config_file_of_the_readme_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "run.yaml").write_text(example[1])
    monkeypatch.chdir(tmp_path)
    assert mt_train(["--config", "run.yaml", "--train.steps", "100", "--print-config"]) == 0
    assert "# command line" in capsys.readouterr().out


def test_the_tour_has_commands() -> None:
    assert len(COMMANDS) >= 8
