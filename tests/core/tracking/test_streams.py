"""A console that is not UTF-8 is written to, whatever there is to say."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

import pytest

from mt_core.cli.guard import run_command
from mt_core.tracking.streams import make_printable
from mt_train.tracking import logs

COMMANDS = sorted(each for each in entry_points(group="console_scripts") if each.name.startswith("mt-"))
ENCODINGS = ("ascii", "latin-1", "cp1252", "utf-8")


def console(encoding: str, errors: str = "strict") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors, write_through=True)


def bytes_written(stream: io.TextIOWrapper) -> bytes:
    return stream.buffer.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_an_encoding_lacks_is_written_in_ascii_and_nothing_else_changes(encoding: str, errors: str) -> None:
    stream, text = console(encoding, errors), "loss → 1.5 … é 日 🙂 «x» ▁█ \ud83d plain"
    make_printable(stream)
    print(text, file=stream)
    shown = bytes_written(stream).decode(encoding)
    assert shown.startswith("loss ")
    assert shown.rstrip().endswith("\\ud83d plain"), "half a character is none in UTF-8 either"
    if encoding == "utf-8":
        assert shown == text.replace("\ud83d", "\\ud83d") + "\n"
    if encoding == "ascii":
        assert shown == "loss -> 1.5 ... \\xe9 \\u65e5 \\U0001f642 <<x>> _# \\ud83d plain\n"


def test_the_bytes_of_a_path_come_out_as_they_were() -> None:
    stream = console("ascii", "surrogateescape")
    make_printable(stream)
    print(b"na\xc3\xafve".decode("ascii", "surrogateescape"), file=stream)
    assert bytes_written(stream) == b"na\xc3\xafve\n"


@pytest.mark.parametrize("encoding", ENCODINGS[:3])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.name)
def test_every_command_shows_its_help_and_its_errors(
    command: object, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main: Callable[[Sequence[str]], int] = command.load()  # type: ignore[attr-defined]
    for words in (["--help"], ["--nö", "日本 …"]):
        out, err = console(encoding), console(encoding)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
        assert code == (0 if words == ["--help"] else 2)
        said = bytes_written(out) + bytes_written(err)
        assert said
        assert b"Traceback" not in said
        assert b"UnicodeEncodeError" not in said


def test_a_program_that_has_prepared_nothing_is_shown_a_runs_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    out = console("ascii")
    monkeypatch.setattr(sys, "stdout", out)
    logs.show("step 1 → 2")
    assert bytes_written(out) == b"step 1 -> 2\n"


def test_json_on_a_console_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    from mt_tools.cli.data import main

    out = console("ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["inspect", "--json", "--data.read-rows", "20"]) == 0
    assert json.loads(bytes_written(out))["rows_read"] > 0


def test_a_stream_of_another_kind_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert run_command(lambda: 0, debug=False) == 0
