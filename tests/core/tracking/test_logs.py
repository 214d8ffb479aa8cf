"""A word to a person is text on standard error, never with a secret or what a terminal obeys."""

from __future__ import annotations

import pytest

from mt_core import notice
from mt_core.tracking.logs import for_the_file


def test_a_notice_is_shown_without_secrets_and_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    notice("warning: \x1b[2J with hf_" + "aB3" * 10)
    assert capsys.readouterr().err == "warning: \\x1b[2J with •••\n"


def test_words_for_the_file_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for_the_file("step 3")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
