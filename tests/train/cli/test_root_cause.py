"""Who ended a run, from exit codes and last words."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mt_train.cli.root_cause import explain_exit

KILLED, ABORTED = -signal.SIGKILL, -signal.SIGABRT


@pytest.mark.parametrize(
    ("codes", "words", "code", "said"),
    [
        ([0, 0], {}, 0, []),
        ([75, 75], {}, 75, []),
        (
            [1, KILLED],
            {"0.lost": "lost"},
            1,
            ["rank 1 was killed by SIGKILL (the system does that when memory runs out)"],
        ),
        ([1, -signal.SIGSEGV, 1], {"0.said": "a", "2.said": "in disguise"}, 1, ["rank 1 was killed by SIGSEGV"]),
        ([-signal.SIGSEGV, 1], {"1.lost": "lost"}, 1, ["rank 0 was killed by SIGSEGV"]),
        (
            [1, 2, 1],
            {"0.lost": "x", "1.said": "no such row", "2.lost": "x"},
            2,
            ["rank 1 ended with code 2: no such row"],
        ),
        ([2, 2], {"0.said": "lr: too high", "1.said": "lr: too high"}, 2, []),
        ([1, 1], {"0.said": "another rank failed", "1.said": "disk full"}, 1, ["rank 1 ended with code 1: disk full"]),
        ([1, 0], {"0.lost": "lost"}, 1, ["rank 1 left before the run was over, with code 0"]),
        ([ABORTED, 1], {"1.said": "bad row"}, 1, ["rank 1 ended with code 1: bad row"]),
        ([75, 1], {"1.said": "disk full"}, 1, ["rank 1 ended with code 1: disk full"]),
        ([1, 1], {"0.lost": "a", "1.lost": "b"}, 1, ["rank 0 ended with code 1: a", "rank 1 ended with code 1: b"]),
        (
            [1, 3],
            {"0.lost": "lost", "1.err": "usual\nImportError: x\n"},
            3,
            ["rank 1 ended with code 3: ImportError: x"],
        ),
    ],
)
def test_the_rank_that_others_failed_with_is_named_and_each_thing_is_said_once(
    codes: list[int | None], words: dict[str, str], code: int, said: list[str], tmp_path: Path
) -> None:
    for name, text in words.items():
        (tmp_path / f"rank-{name}").write_text(text)
    assert explain_exit(codes, [0] * len(codes), tmp_path) == (code, said)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("waiting", [("lost", 1), ("", ABORTED)], ids=["gloo", "nccl"])
def test_a_process_that_still_runs_when_the_others_gave_up_is_the_one_and_a_stopped_one_is_told_apart(
    waiting: tuple[str, int], tmp_path: Path
) -> None:
    word, code = waiting
    if word:
        (tmp_path / "rank-0.lost").write_text(word)
    script = (
        "import faulthandler, signal, time\nfaulthandler.register(signal.SIGUSR2)\nprint(flush=True)\ntime.sleep(60)"
    )
    with (tmp_path / "rank-1.err").open("wb") as errors:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        found, (text,) = explain_exit([code, None], [0, process.pid], tmp_path)
        assert found == 1
        assert text.startswith("rank 1 does not answer")
        assert re.search(r'  File "<string>", line [34] in <module>$', text)
        process.send_signal(signal.SIGSTOP)
        while "T" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]:
            pass
        assert explain_exit([code, None], [0, process.pid], tmp_path)[1][0].startswith("rank 1 is stopped (SIGSTOP")
    finally:
        process.kill()
        process.communicate()
