"""Where in somebody's code a failure came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_train import describe_failure


def test_a_failure_is_told_where_the_working_directory_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ValueError, match="a word") as caught:
        int("a word")
    assert f"({__file__}, line {caught.tb.tb_lineno}; --debug" in describe_failure(caught.value, __file__)
