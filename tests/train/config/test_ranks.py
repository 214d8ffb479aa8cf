"""What a launcher says is read closed: a process that nobody can be is one error, and never another rank."""

from __future__ import annotations

import pytest

from mt_core.errors import UsageError
from mt_train.cli.train import main
from mt_train.config.ranks import Ranks, ranks

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR")
ODD = ("", "a", "-1", "5", " 1", "1.0", "²", "٣", "1_0", "9" * 5000, "\x1b[2J")


def say(monkeypatch: pytest.MonkeyPatch, **said: str) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
def test_an_odd_value_is_one_error_that_names_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    if (name, value) in (("WORLD_SIZE", "5"), ("MASTER_PORT", "5")):
        return  # which they may be
    say(monkeypatch, **good | {name: value})
    with pytest.raises(UsageError, match=name):
        ranks()
    assert main(["--model", "llama"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error")
    assert said.err.count("\n") == 1
    assert said.err.strip().isprintable()


def test_without_a_launcher_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch)
    assert ranks() == Ranks(0, 1, 0)
    say(monkeypatch, WORLD_SIZE="4", RANK="3", LOCAL_RANK="1", MASTER_PORT="1234")
    assert ranks() == Ranks(3, 4, 1)


def test_a_number_of_processes_without_a_rank_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process would be the first one."""
    say(monkeypatch, WORLD_SIZE="4")
    with pytest.raises(UsageError, match="WORLD_SIZE is 4, and RANK is not set"):
        ranks()


@pytest.mark.parametrize("text", ["0", "²", "-1", "1e3", "9" * 5000, "1000000"])
def test_a_number_of_processes_to_start_is_bounded(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch)
    assert main(["--model", "llama", "--output", "none", f"--nproc-per-node={text}"]) == 2
    assert "--nproc-per-node takes a number from 1 to 100,000, or auto" in capsys.readouterr().err


def test_no_more_processes_are_started_than_a_machine_has_room_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch)
    assert (
        main(["--model", "llama", "--output", "none", "--nproc-per-node=8192", "--train.global-batch-size=65536"]) == 2
    )
    assert "would start 8192 processes on a machine with" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["tensor", "tensor-parallel", "tp"])
def test_tensor_ranks_are_refused_with_the_layouts_that_there_are(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "llama", f"--parallel.{key}", "2", "--print-config"]) != 0
    said = capsys.readouterr().err
    assert "no layer is divided into columns and rows here" in said
    assert all(layout in said for layout in ("zero_stage=3", "sequence", "pipeline", "expert"))
