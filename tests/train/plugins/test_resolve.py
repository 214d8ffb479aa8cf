"""Values of a run that come from neither a file nor the command line."""

from __future__ import annotations

import pytest

from mt_core.errors import ConfigError
from mt_train import load_config

pytestmark = pytest.mark.usefixtures("kit_model")


@pytest.mark.parametrize(
    ("key", "variable", "usual"),
    [("console_level", "MT_LOG_LEVEL", "info"), ("file_level", "MT_LOG_FILE_LEVEL", "debug")],
)
def test_the_environment_sets_the_level_of_console_and_file_where_the_run_does_not(
    key: str, variable: str, usual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def levels(**given: str) -> dict[str, str]:
        return load_config({"model": "kit-tiny", "log": given}).log.model_dump(include={"console_level", "file_level"})

    others = levels()
    assert others[key] == usual
    monkeypatch.setenv(variable, "warning")
    assert levels() == {**others, key: "warning"}, "and not the other one"
    assert levels(**{key: "error"})[key] == "error"
    monkeypatch.setenv(variable, "")
    assert levels() == others


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
