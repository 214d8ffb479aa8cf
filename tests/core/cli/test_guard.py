"""What every command does before and after its work."""

from __future__ import annotations

import os

import pytest

from mt_core.cli.guard import guarded
from mt_core.errors import DataError, StoppedError, UsageError


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_wait_politely_unless_the_user_says_how(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    seen = []
    assert guarded(lambda: seen.append(os.environ.get("GOMP_SPINCOUNT")) or 0, debug=False) == 0
    assert seen == [expected]


@pytest.mark.parametrize(
    ("error", "code"),
    [(DataError("x"), 1), (UsageError("x"), 2), (StoppedError("x"), 75), (KeyboardInterrupt(), 130), (OSError("x"), 1)],
)
def test_each_kind_of_error_has_its_code_and_no_traceback(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise error

    assert guarded(fail, debug=False) == code
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "Traceback" not in said
