"""mt-report as it is called: what it writes, what it refuses, and what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mt_tools.cli.report import main
from mt_tools.report.run import short_names

MakeRun = Callable[..., Path]


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(word) for word in argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.removesuffix("\n")


def test_one_run_goes_into_its_folder(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    assert main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    said = capsys.readouterr()
    assert said.out == f"{run / 'report.html'} ({len(page.encode()) / 1e6:.2f} MB, 1 run)\n"
    assert said.err == ""
    assert sorted(path.name for path in run.iterdir() if path.name.startswith(".")) == []


def test_several_runs_go_into_the_current_folder(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run("a"), make_run("b")]
    monkeypatch.chdir(tmp_path)
    assert main([str(run) for run in runs]) == 0
    assert "2 runs" in (tmp_path / "report.html").read_text()


def test_its_own_page_is_written_anew_and_no_other_file(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    assert main([str(run)]) == 0
    assert main([str(run)]) == 0
    other = run / "other.html"
    other.write_text("<p>mine</p>")
    capsys.readouterr()
    said = refusal(capsys, run, "--output", other)
    assert said == (
        f"error: {other} exists and is no page of mt-report; choose another --output, or replace it with --overwrite"
    )
    assert other.read_text() == "<p>mine</p>"
    assert main([str(run), "--output", str(other), "--overwrite"]) == 0
    assert other.read_text().startswith("<!doctype html>")


def test_no_file_of_another_kind_is_ever_replaced(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    before = (run / "metrics.jsonl").read_text()
    said = refusal(capsys, run, "--output", run / "metrics.jsonl", "--overwrite")
    assert said.endswith("must end in .html, so that it never replaces another kind of file")
    assert (run / "metrics.jsonl").read_text() == before


def test_an_output_that_cannot_be_is_refused(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    assert f"the output {tmp_path} is a folder; give a file" in refusal(capsys, run, "--output", tmp_path)
    missing = tmp_path / "no" / "page.html"
    assert refusal(capsys, run, "--output", missing) == (
        f"error: the folder of the output, {missing.parent}, does not exist; create it, or choose another --output"
    )


def test_a_folder_that_is_no_run_is_named(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refusal(capsys, empty) == (
        f"error: {empty} is no run (it has no run.yaml); give the folder of a run: it holds run.yaml and metrics.jsonl"
    )
    assert refusal(capsys, tmp_path / "gone") == f"error: {tmp_path / 'gone'} does not exist; give the folder of a run"
    run = make_run()
    file = run / "metrics.jsonl"
    assert refusal(capsys, file, empty, run).splitlines() == [
        "error: 2 of 3 are no runs:",
        f"  {file} is a file; give the folder of a run",
        f"  {empty} is no run (it has no run.yaml); give the folder of a run: it holds run.yaml and metrics.jsonl",
    ]
    assert refusal(capsys, tmp_path) == (
        f"error: {tmp_path} is no run (it has no run.yaml); these folders in it are: {run}"
    )


def test_a_run_given_twice_is_shown_once(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    again = run.parent / "." / "run"
    assert main([str(run), f"{run}/../run"]) == 0
    assert again.is_dir()
    said = capsys.readouterr()
    assert said.err == f"notice: {run}/../run is the same run as {run}; it is shown once\n"
    assert said.out.endswith(", 1 run)\n")


def test_runs_of_the_same_name_are_told_apart() -> None:
    assert short_names([Path("/a/run"), Path("/b/run"), Path("/b/other")]) == ["a/run", "b/run", "other"]
    assert short_names([Path("/x/a/run"), Path("/y/a/run")]) == ["x/a/run", "y/a/run"]


def test_an_old_run_a_broken_file_and_an_empty_one_make_a_page_that_says_so(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(records=[], completed=False)
    (run / "about.json").write_text("{")
    (run / "samples.jsonl").write_text("nothing\n")
    assert main([str(run)]) == 0
    said = capsys.readouterr().err
    page = (run / "report.html").read_text()
    for words in (
        "about.json cannot be read",
        "metrics.jsonl holds no record",
        "1 line(s) of samples.jsonl are no sample",
    ):
        assert f"notice: run: {words}" in said
        assert words in page
    assert "stopped at step 0 of 60" in page


def test_neither_torch_nor_matplotlib_is_imported(make_run: MakeRun) -> None:
    code = (
        "import sys; from mt_tools.cli.report import main; assert main(sys.argv[1:]) == 0;"
        "heavy = {'torch', 'matplotlib', 'deepspeed', 'transformers', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, str(make_run())], check=True, timeout=300)
