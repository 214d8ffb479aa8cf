"""Values of a run that come from neither a file nor the command line."""

from __future__ import annotations

import pytest

from mt_core.errors import ConfigError
from mt_train import load_config

pytestmark = pytest.mark.usefixtures("kit_model")


def test_the_environment_sets_the_level_of_the_console_where_the_run_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_config({"model": "kit-tiny"}).log.console_level == "info"
    monkeypatch.setenv("MT_LOG_LEVEL", "warning")
    assert load_config({"model": "kit-tiny"}).log.console_level == "warning"
    assert load_config({"model": "kit-tiny", "log": {"console_level": "debug"}}).log.console_level == "debug"
    monkeypatch.setenv("MT_LOG_LEVEL", "")
    assert load_config({"model": "kit-tiny"}).log.console_level == "info"


@pytest.mark.parametrize("level", ["loud", "INFO ", "10"])
def test_a_level_that_is_none_is_one_clear_message(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("MT_LOG_LEVEL", level)
    with pytest.raises(ConfigError) as caught:
        load_config({"model": "kit-tiny"})
    (fault,) = caught.value.faults
    assert str(fault) == (
        f"log.console-level: is {level!r}, from the environment variable MT_LOG_LEVEL. Set that to one of debug, info, warning,"
        " error, or unset it."
    )
