"""The command itself."""

from __future__ import annotations

import pytest

import mt_core
import mt_train
from mt_train.cli.train import main


def test_the_version_names_the_command_and_the_core(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mt-train {mt_train.__version__} (mt-core {mt_core.__version__})\n"
