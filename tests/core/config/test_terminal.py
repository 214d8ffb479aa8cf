"""What a terminal would obey is written out on its way to standard output and error, and nothing else changes."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_core.cli.guard import run_command
from mt_core.config.terminal import ShownStream, drawing_stream, escape_controls, show_standard_streams
from mt_core.errors import DataError

OBEYED = "\x1b[2J\x1b]0;t\x07\x9b31m\r\x08\x00\x7f\u202e\u2066\u2028\udc80"


@given(text=st.text(alphabet=st.characters()))
def test_no_character_that_a_terminal_obeys_comes_through(text: str) -> None:
    shown = escape_controls(text)
    left = {
        each for each in shown if unicodedata.category(each) in ("Cc", "Cs") or unicodedata.bidirectional(each) in BIDI
    }
    assert left <= {"\n", "\t"}
    assert escape_controls(shown) == shown, "what is clean stays"
    kept = [each for each in text if each == escape_controls(each)]
    assert "".join(kept) == "".join(escape_controls(each) for each in text if each == escape_controls(each))


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Classes of https://unicode.org/reports/tr9/ that move what comes after them."""


def test_ordinary_text_of_any_script_is_untouched() -> None:
    text = "naïve 漢字 مرحبا שלום नमस्ते 👩‍👩‍👧 •\t|\n\u200f\u00a0"
    assert escape_controls(text) == text


@given(value=st.text(alphabet=st.characters()))
def test_json_stays_json_and_says_the_same(value: str) -> None:
    assert json.loads(escape_controls(json.dumps(value, ensure_ascii=False))) == value


def test_a_command_writes_through_it_and_leaves_the_streams_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr

    def work() -> int:
        print(f"out {OBEYED}")
        sys.stderr.writelines([f"err {OBEYED}\n"])
        assert not isinstance(drawing_stream(sys.stdout), ShownStream), "what draws by itself gets the stream behind"
        raise DataError(f"fault {OBEYED}")

    assert run_command(work, debug=False) == 1
    assert (sys.stdout, sys.stderr) == before
    said = capsys.readouterr()
    shown = "\\x1b[2J\\x1b]0;t\\x07\\u009b31m\\x0d\\x08\\x00\\u007f\\u202e\\u2066\\u2028\\udc80"
    assert said.out == f"out {shown}\n"
    assert said.err == f"err {shown}\nerror: fault {shown}\n"


def test_streams_are_wrapped_once(capsys: pytest.CaptureFixture[str]) -> None:
    with show_standard_streams(), show_standard_streams():
        assert not isinstance(drawing_stream(sys.stdout), ShownStream)
        print("\x1b")
    assert capsys.readouterr().out == "\\x1b\n"
