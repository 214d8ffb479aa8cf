"""The benchmark of a slow network: its options are checked before a namespace is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import network


def test_a_layout_that_does_not_exist_is_told_with_those_that_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["network.py", "--cases", "zero 0;zero 9"])
    with pytest.raises(SystemExit, match="2"):
        network.main()
    assert "there is no layout zero 9; there are zero 0; zero 1; " in capsys.readouterr().err
