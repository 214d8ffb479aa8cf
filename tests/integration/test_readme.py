"""What README.md says beside its commands, which test_docs.py runs. Its first two run whole in test_first_run.py and in .ci/run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mt_core.cli.train import main as mt_train

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_config_file_of_the_readme_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert example is not None
    (tmp_path / "run.yaml").write_text(example[1])
    monkeypatch.chdir(tmp_path)
    assert mt_train(["--config", "run.yaml", "--train.steps", "100", "--print-config"]) == 0
    assert "# command line" in capsys.readouterr().out


def test_the_reading_order_has_every_package_and_nothing_else() -> None:
    listed = set(re.findall(r"^  ([\w.]+?)/?  ", README, re.MULTILINE))
    core = ROOT / "core/src/mt_core"
    assert {name for name in listed if not (core / name).exists()} == set()
    packages = {path.parent.name for path in core.glob("*/__init__.py")}
    assert packages - listed == set()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 130


def test_the_picture_is_there_small_and_described() -> None:
    picture = re.search(r"!\[([^\]]+)\]\(([^)]+\.png)\)", README)
    assert picture is not None
    assert len(picture[1]) > 40
    assert 1_000 < (ROOT / picture[2]).stat().st_size < 150_000
