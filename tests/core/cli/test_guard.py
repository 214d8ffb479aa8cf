"""What every command does before and after its work."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
from pydantic_core import SchemaError
from rich.console import Console

from mt_core.cli.guard import ERRORS_VARIABLE, parse_and_run, run_command
from mt_core.errors import DataError, StoppedError, UsageError, WorkerError


class UnreadConsole(Console):
    """Leaves as rich does, which takes the output of the whole process away."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        raise SystemExit(1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
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
    assert run_command(lambda: seen.append(os.environ.get("GOMP_SPINCOUNT")) or 0, debug=False) == 0
    assert seen == [expected]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--outptu=x"], "unrecognized arguments: --outptu=x. Did you mean '--output'?"),
        (["list", "--jsn=1"], "unrecognized arguments: --jsn=1. Did you mean '--json'?"),
        (["--zzz"], "unrecognized arguments: --zzz"),
    ],
)
def test_an_option_that_is_misspelt_is_told_with_the_one_that_is_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options of a command within a command count as well."""
    parser = argparse.ArgumentParser(prog="mt-x")
    parser.add_argument("--output")
    parser.add_subparsers().add_parser("list").add_argument("--json", action="store_true")
    with pytest.raises(SystemExit, match="2"):
        parse_and_run(parser, lambda arguments: 0, words)
    assert capsys.readouterr().err.rstrip().endswith(f"mt-x: error: {said}")


@pytest.mark.parametrize(
    ("error", "code"),
    [(DataError("x"), 1), (UsageError("x"), 2), (StoppedError("x"), 75), (KeyboardInterrupt(), 130), (OSError("x"), 1)],
)
def test_each_kind_of_error_has_its_code_and_no_traceback(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise error

    assert run_command(fail, debug=False) == code
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "Traceback" not in said


def test_an_error_that_nobody_expected_says_where_it_was_raised(capsys: pytest.CaptureFixture[str]) -> None:
    def misspell() -> int:
        return names["scale"]

    names: dict[str, int] = {}
    assert run_command(misspell, debug=False) == 1
    line = misspell.__code__.co_firstlineno + 1
    assert f"unexpected KeyError: 'scale' ({__file__}, line {line}; --debug" in capsys.readouterr().err


def test_an_interrupt_that_a_library_has_wrapped_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    def build() -> int:
        raise SchemaError('Error building "model-fields" validator:\n  KeyboardInterrupt: ')

    assert run_command(build, debug=False) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("code", [0, None, 7, "enough"])
def test_code_that_leaves_with_whatever_code_has_failed(code: object, capsys: pytest.CaptureFixture[str]) -> None:
    def leave() -> int:
        raise SystemExit(code)

    assert run_command(leave, debug=False) == 1
    said = capsys.readouterr().err
    assert "asked the process to end (SystemExit" in said
    assert "Traceback" not in said


def test_a_table_of_rich_that_nobody_reads_to_its_end_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    """``mt-data inspect | head -1``: rich leaves with ``SystemExit`` then, which is no plugin's."""
    reads, writes = os.pipe()
    os.close(reads)

    def draw() -> int:
        with open(writes, "w", encoding="utf-8") as stream:
            UnreadConsole(file=stream).print("table")
        return 0

    with pytest.raises(SystemExit, match="1"):
        run_command(draw, debug=False)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("error", [DataError("what happened"), WorkerError("what happened")], ids=["own", "lost"])
def test_last_words_are_said_where_the_launchers_folder_is_gone(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise error

    monkeypatch.setenv("RANK", "1")
    for place in (tmp_path / "gone", tmp_path / "file"):
        (tmp_path / "file").write_text("in the place of a folder")
        monkeypatch.setenv(ERRORS_VARIABLE, str(place))
        assert run_command(fail, debug=False) == 1
        assert capsys.readouterr().err == "error (rank 1): what happened\n"
