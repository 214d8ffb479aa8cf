"""A tracker never stops a run, but what can be put right before the first step is an error."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core import MtError, StepRecord
from mt_train.tracking.trackers import GuardedTracker

RECORD = StepRecord(1, 1.0, 0.1, 1.0, 9, 1.0, 1.0, 0.0)


class BrokenTracker:
    """Fails in one method."""

    def __init__(self, where: str) -> None:
        self.where, self.calls = where, []

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **keywords: Any) -> None:
            self.calls.append(name)
            if name == self.where:
                raise OSError("sk-abcdefghijklmnopqrstuvwxyz was refused")

        return called


@pytest.mark.parametrize(("where", "calls"), [("log", ["log"]), ("close", ["log", "log", "close"])])
def test_a_failure_is_one_warning_without_secrets(
    where: str, calls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = BrokenTracker(where)
    tracker = GuardedTracker("mine", lambda: broken)
    tracker.log(RECORD)
    tracker.log(RECORD)
    tracker.close(failed=False)
    tracker.close(failed=False)
    assert broken.calls == calls
    assert capsys.readouterr().err.count(f"warning: tracker mine failed ({where}): OSError: ••• was refused") == 1


def test_only_an_error_of_ours_ends_the_start() -> None:
    def refuses(error: Exception) -> Any:
        raise error

    GuardedTracker("mine", lambda: refuses(ConnectionError("no network"))).log(RECORD)
    with pytest.raises(MtError, match="pip install"):
        GuardedTracker("mine", lambda: refuses(MtError("pip install it")))
