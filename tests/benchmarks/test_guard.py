"""The guard against slower steps: its verdict follows from what was measured, and a real pair is measured at night."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import guard

ROOT = guard.ROOT


def measured(*seconds: float, values: list[float] | None = None, wall: float = 1.0) -> dict[str, list[float]]:
    return {"cpu": list(seconds), "wall": [wall], "values": [2.0, 1.0] if values is None else values}


def test_a_case_is_slower_where_the_median_pair_is_below_the_bound() -> None:
    base = [measured(1.0, 1.0, 9.0)] * 3
    found = guard.judge(base, [measured(1.2, 1.2), measured(1.0), measured(1.3, 1.1, 1.2)], least=0.93)
    assert (found["verdict"], found["cpu_ratio"]) == ("slower", [0.833, 0.833, 1.0])
    assert (found["base_cpu_ms"], found["now_cpu_ms"]) == (1000.0, 1200.0)
    assert guard.judge(base, [measured(2.0), measured(1.05), measured(1.0)])["verdict"] == "ok", "one pair may be off"
    assert guard.judge(base, [measured(1.08)] * 3)["verdict"] == "slower"
    assert guard.judge(base, [measured(1.08)] * 3, least=0.9)["verdict"] == "ok"


def test_waiting_is_shown_and_does_not_decide() -> None:
    found = guard.judge([measured(1.0)], [measured(1.0, wall=4.0)])
    assert (found["verdict"], found["wall_ratio"]) == ("ok", [0.25, 0.25, 0.25])


@pytest.mark.parametrize("values", [[2.0, 1.001], [2.0], [2.0, float("nan")]])
def test_trees_that_compute_other_values_are_told_whatever_their_speed(values: list[float]) -> None:
    assert guard.judge([measured(1.0)], [measured(0.5, values=values)])["verdict"] == "other values"


def test_what_both_trees_compute_may_differ_in_its_last_digits() -> None:
    found = guard.judge([measured(1.0)], [measured(1.0, values=[2.0, 1.00001])])
    assert (found["verdict"], found["difference"]) == ("ok", pytest.approx(1e-5))


def run_guard(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks/guard.py"), "--base-tree", str(ROOT), "--pairs", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def test_a_case_that_does_not_exist_is_told_with_those_that_do() -> None:
    done = run_guard("--cases", "full,ful")
    assert done.returncode == 2
    assert "there is no case ful; there are full, lora, packed, decode" in done.stderr


def test_a_commit_that_does_not_exist_is_told_with_its_name_and_what_git_says() -> None:
    with (
        pytest.raises(
            SystemExit, match="--base nonsense cannot be checked out; name a commit of this repository: fatal"
        ),
        guard.check_out("nonsense"),
    ):
        pass


@pytest.mark.night
@pytest.mark.parametrize("case", guard.NAMES)
def test_a_tree_beside_itself_computes_the_same_and_the_bound_decides(case: str) -> None:
    lines: list[dict[str, Any]] = []
    for least, code in (("0.01", 0), ("100", 1)):
        done = run_guard("--steps", "2", "--cases", case, "--least", least)
        assert done.returncode == code, done.stderr
        lines += [json.loads(done.stdout)]
    assert [line["verdict"] for line in lines] == ["ok", "slower"]
    assert all(line["difference"] == 0 and line["case"] == case for line in lines)
