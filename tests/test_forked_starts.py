"""A forked start is what a real one is, for who asks and for who is asked."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_starts
import pytest

REPORTER = Path(__file__).with_name("start_reporter.py")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.path.exists("/dev/nvidiactl"), reason="every start is real here"
)


@pytest.fixture
def starts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> forked_starts.Starts:
    """Those of this process, from where all that is asked for can be forked."""
    conftest = next(plugin for plugin in request.config.pluginmanager.get_plugins() if hasattr(plugin, "STARTS"))
    starts: forked_starts.Starts = request.config.stash[conftest.STARTS]
    assert starts.drift() == [], "every start is a real one since a test, or an import of one, set these"
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    return starts


def both(starts: forked_starts.Starts, *words: str, **options: Any) -> list[subprocess.CompletedProcess[str]]:
    """What the same command says and ends with when it is forked, and when its start is real."""
    command = [sys.executable, str(REPORTER), *words]
    before, done = starts.count["forked"], []
    for real in (False, True):
        with starts.all_real(real):
            done.append(subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options))
    assert starts.count["forked"] == before + 1
    return done


def test_words_folder_environment_and_paths_are_those_of_a_real_start(
    starts: forked_starts.Starts, tmp_path: Path
) -> None:
    environment = {**os.environ, "RANK": "1", "PYTHONPATH": f"{tmp_path}{os.pathsep}beside", "NEW": "é"}
    forked, real = both(starts, "report", "two words", cwd=tmp_path, env=environment, input="given")
    assert forked.stderr == real.stderr == ""
    ours, theirs = json.loads(forked.stdout), json.loads(real.stdout)
    assert ours["environment"]["NEW"] == "é"
    assert ours == theirs


@pytest.mark.parametrize("options", [{}, {"process_group": 0}, {"start_new_session": True}], ids=str)
def test_its_parent_is_who_asked_and_its_group_what_was_asked_for(
    starts: forked_starts.Starts, options: dict[str, Any]
) -> None:
    for done in both(starts, "family", **options):
        said = json.loads(done.stdout)
        assert said["parent"] == os.getpid()
        assert (said["group"] == os.getpgrp()) == (not options)
        assert (said["session"] == os.getsid(0)) == ("start_new_session" not in options)
        assert said["leads"] == bool(options)


@pytest.mark.parametrize("how", ["exit 3", "exit text", "raise", "interrupt", "kill", "late", "thread", "nothing"])
def test_it_ends_as_a_real_one_does(starts: forked_starts.Starts, how: str) -> None:
    forked, real = both(starts, *how.split())
    assert forked.returncode == real.returncode
    assert forked.stdout == real.stdout
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_a_signal_reaches_it_and_a_file_that_is_passed_is_its(starts: forked_starts.Starts) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, str(REPORTER), "wait", str(writing)]
    before = starts.count["forked"]
    process = subprocess.Popen(command, pass_fds=(writing,), stdout=subprocess.DEVNULL)
    os.close(writing)
    assert os.read(reading, 100) == b"waiting"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    assert os.read(reading, 100) == b"", "closed everywhere"
    os.close(reading)
    assert starts.count["forked"] == before + 1


def test_ignored_signals_and_limits_are_handed_on(starts: forked_starts.Starts) -> None:
    honest = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        assert {done.stdout for done in both(starts, "ignored")} == {"True\n"}
    finally:
        signal.signal(signal.SIGUSR1, honest)


def test_every_start_draws_other_random_numbers(starts: forked_starts.Starts) -> None:
    drawn = [json.loads(done.stdout) for _ in range(2) for done in both(starts, "draw")]
    for kind in ("random", "numpy", "torch"):
        assert len({each[kind] for each in drawn}) == 4, kind


def test_it_waits_for_no_disk_and_neither_does_this_process(starts: forked_starts.Starts) -> None:
    forked, real = (json.loads(done.stdout) for done in both(starts, "sync"))
    assert forked["said"] == real["said"] == [None, None, os.strerror(errno.EBADF)]
    assert (forked["by"], real["by"]) == ("forked_starts", "posix")
    assert os.fsync.__module__ == "forked_starts"


def test_code_of_this_repository_is_read_once_and_any_other_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "read_anew").mkdir()
    (tmp_path / "read_anew" / "__init__.py").write_text("")
    (tmp_path / "read_anew_too.py").write_text("")
    asked: list[tuple[str, ...]] = []
    hash_code = forked_starts._keep_hashes(lambda *modules: asked.append(modules) or str(len(asked)))
    for modules in (("mt_core", "mt_train.loop"), ("read_anew",), ("mt_core", "read_anew"), ("read_anew_too",)):
        found = [hash_code(*modules) for _ in range(2)]
        assert (found[0] == found[1]) == (modules[:2] == ("mt_core", "mt_train.loop")), modules
    assert hash_code("mt_core.lazy", "mt_train") == "1", "the same packages"
    assert hash_code("mt_train", "mt_core") != "1", "in another order"


def test_a_run_has_a_picture_for_its_loss_curve_and_none_without_a_loss(tmp_path: Path) -> None:
    from PIL import Image

    from mt_train.tracking import recorder

    recorder.plot_losses([{"step": 1, "loss": None}], tmp_path / "none.png")
    recorder.plot_losses([{"step": 1, "loss": 2.0}], tmp_path / "some.png", unit="nats")
    assert [path.name for path in tmp_path.iterdir()] == ["some.png"]
    assert Image.open(tmp_path / "some.png").size == (1, 1)


def test_what_a_command_starts_is_forked_too_and_is_its_child(starts: forked_starts.Starts) -> None:
    """The first of two processes exits before it is asked for its second; the server of the command ends with it."""
    forked, real = both(starts, "launch", str(REPORTER))
    for said in (json.loads(forked.stdout), json.loads(real.stdout)):
        assert said["parents"] == [said["pid"], said["pid"]]
        assert said["codes"] == [0, 0]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "HF_HOME", "PYTHONHASHSEED"])
def test_a_variable_that_is_read_at_import_makes_the_start_a_real_one(starts: forked_starts.Starts, name: str) -> None:
    before = starts.count.copy()
    environment = {**os.environ, name: "7"}
    subprocess.run([sys.executable, str(REPORTER), "nothing"], env=environment, check=True, timeout=300)
    assert starts.count == {"forked": before["forked"], "real": before["real"] + 1}


def test_a_variable_that_this_process_got_since_it_began_is_named(
    starts: forked_starts.Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", "/elsewhere")
    monkeypatch.setenv("ANOTHER", "which nobody reads at import")
    assert starts.drift() == ["HF_HOME"]


def test_a_module_before_one_that_is_imported_makes_the_start_a_real_one(
    starts: forked_starts.Starts, tmp_path: Path
) -> None:
    (tmp_path / "mt_train.py").write_text("print('instead')")
    before = starts.count["real"]
    command = [sys.executable, "-m", "mt_train.cli.train", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stdout == "instead\n"
    assert starts.count["real"] == before + 1


@pytest.mark.real_start
def test_a_test_can_ask_for_real_starts(starts: forked_starts.Starts) -> None:
    before = starts.count["forked"]
    subprocess.run([sys.executable, str(REPORTER), "nothing"], check=True, timeout=300)
    assert starts.count["forked"] == before
