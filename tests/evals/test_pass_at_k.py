"""``pass-at-k``: its formula, what a program may not do, and that nothing is run which nobody allowed."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from plain_subject import ScriptedSubject
from test_gsm8k import Rows

from mt_core import DataError, UsageError
from mt_core.evaluation import Findings
from mt_plugin_evals.generated.config import PassAtKConfig
from mt_plugin_evals.generated.pass_at_k import PassAtK, pass_at_k
from mt_plugin_evals.generated.sandbox import Limits, run_program

LIMITS = Limits(1, 256 * 2**20)
HUMAN_EVAL = {
    "task_id": "HumanEval/x",
    "prompt": 'def add(a, b):\n    """The sum."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(-1, 1) == 0\n",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function to double a number.",
    "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
}


def run(subject: Any, rows: list[dict[str, Any]], **options: Any) -> Findings:
    config = PassAtKConfig(rows={"name": "x"}, **{"run_untrusted_code": True, "cpu_seconds": 1, **options})
    return PassAtK(config, Rows(rows)).run(subject)


@pytest.mark.parametrize("answers", [1, 4, 6])
def test_the_figure_is_the_chance_that_k_drawn_answers_have_a_right_one(answers: int) -> None:
    for right in range(answers + 1):
        for k in range(1, answers + 1):
            draws = list(itertools.combinations([True] * right + [False] * (answers - right), k))
            assert pass_at_k(answers, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_the_figure_equals_the_estimate_of_the_paper() -> None:
    """``estimate_pass_at_k`` of https://github.com/openai/human-eval."""
    for n, c, k in ((200, 13, 100), (200, 0, 1), (200, 200, 10), (20, 3, 18)):
        expected = 1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
        assert pass_at_k(n, c, k) == pytest.approx(expected)


def test_programs_are_run_and_a_stop_text_ends_them() -> None:
    said = [
        "    return a + b\n\ndef other():\n",
        "    return a - b\n",
        "    return (\n",
        "    while True:\n        pass\n",
    ]
    subject = ScriptedSubject(lambda prompt, number: said[len(subject.configs) - 1])
    found = run(subject, [HUMAN_EVAL], samples=4, k="1,2,4")
    (row,) = found.rows
    assert row["verdicts"] == ["passed", "failed", "unreadable", "timeout"]
    assert [found.figures[f"pass_at_{k}"] for k in (1, 2, 4)] == [1 / 4, pytest.approx(1 / 2), 1]
    assert (found.figures["unread"], found.figures["timeout"]) == (1 / 4, 1 / 4)
    assert subject.prompts == [HUMAN_EVAL["prompt"]] * 4
    assert "n 4, temperature 0.8, top_p 0.95, seed 0, 1 s" in found.signatures["pass_at_1"]


def test_problems_as_mbpp_has_them_are_run_with_all_their_tests() -> None:
    wrong = {**MBPP, "test_list": [*MBPP["test_list"], "assert double(1) == 3"]}
    setup = {**MBPP, "test_setup_code": "two = 2", "test_list": ["assert double(two) == 4"]}
    subject = ScriptedSubject(lambda prompt, number: "def double(x):\n    return x * 2\n[DONE]\n(")
    found = run(subject, [MBPP, wrong, setup])
    assert [row["verdicts"] for row in found.rows] == [["passed"], ["failed"], ["passed"]]
    assert found.figures["pass_at_1"] == pytest.approx(2 / 3)
    assert found.figures["pass_at_1_stderr"] == pytest.approx(np.std([1, 0, 1], ddof=1) / 3**0.5)
    assert subject.prompts[0].endswith(
        "Your code should pass these tests:\n\nassert double(2) == 4\nassert double(0) == 0\n[BEGIN]\n"
    )


def test_tests_of_the_sanitized_mbpp_have_their_imports_and_programs_before_them_have_not() -> None:
    row = {"prompt": MBPP["text"], "test_imports": ["import math"], "test_list": ["assert math.isclose(double(2), 4)"]}
    answers = ["def double(x):\n    return x * 2\n", "two = math.floor(2)\ndef double(x):\n    return x * two\n"]
    found = run(ScriptedSubject(lambda prompt, number: answers[number]), [row, row])
    assert [each["verdicts"] for each in found.rows] == [["passed"], ["failed"]]
    found = run(ScriptedSubject(lambda prompt, number: answers[0]), [{**row, "test_imports": "import math"}])
    assert [each["verdicts"] for each in found.rows] == [["passed"]], "one line of text"
    with pytest.raises(DataError, match=r"'test_imports' must be a list of lines of Python, got \[3\]"):
        run(ScriptedSubject(lambda prompt, number: ""), [{**row, "test_imports": [3]}])


def test_more_samples_keep_those_that_there_were() -> None:
    def seeds(samples: int) -> list[int]:
        subject = ScriptedSubject(lambda prompt, number: "")
        run(subject, [HUMAN_EVAL], samples=samples, seed=3)
        return [config.seed for config in subject.configs]

    assert seeds(3) == seeds(5)[:3]
    assert len(set(seeds(5))) == 5


REFUSED = {
    "a socket": "import socket; socket.socket()",
    "a file to write": "open('written', 'w')",
    "a file to append to": f"open({__file__!r}, 'a')",
    "a file that is removed": f"import os; os.remove({__file__!r})",
    "a file that is renamed": f"import os; os.rename({__file__!r}, {__file__ + 'x'!r})",
    "a folder": "import os; os.mkdir('made')",
    "a mode": f"import os; os.chmod({__file__!r}, 0)",
    "a process": "import os; os.fork()",
    "a command": "import subprocess; subprocess.run(['true'])",
    "another program": "import os; os.execv('/bin/true', ['true'])",
    "a signal": f"import os; os.kill({os.getpid()}, 0)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_program_may_not_do(name: str) -> None:
    program = f"try:\n    {REFUSED[name]}\nexcept PermissionError:\n    pass\nelse:\n    raise SystemExit"
    assert run_program(program, LIMITS) == "passed"


ENDS = {
    "memory": ("x = bytearray(2**30)", "failed"),
    "recursion": ("def f(): f()\nf()", "failed"),
    "an early end": ("import os; os._exit(0)", "failed"),
    "a false verdict": (
        "import os\nfor at in range(3, 60):\n    try: os.write(at, b'x passed')\n    except OSError: pass\nassert 0",
        "failed",
    ),
    "sys.exit": ("import sys; sys.exit(0)", "failed"),
    "no syntax": ("def f(:", "unreadable"),
    "a NUL": ("x = '\0'", "unreadable"),
    "a lone surrogate": ("x = '\ud800'", "unreadable"),
    "the library": (
        "import math, re, json, hashlib, random, heapq, typing, collections, datetime\nhashlib.md5(b'').hexdigest()",
        "passed",
    ),
    "reading": (f"open({__file__!r}).read()", "passed"),
    "input": ("input()", "failed"),
    "printing": ("print('x' * 10**6)", "passed"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_program_that_ends_with(name: str) -> None:
    program, verdict = ENDS[name]
    assert run_program(program, LIMITS) == verdict


def test_a_program_that_goes_on_is_ended() -> None:
    begun = time.monotonic()
    assert run_program("while True: pass", LIMITS) == "timeout"
    assert time.monotonic() - begun < 10


def test_a_program_that_waits_is_ended_by_the_clock() -> None:
    class Short(Limits):
        seconds = 1.0  # type: ignore[assignment]

    assert run_program("import time; time.sleep(60)", Short(1, 256 * 2**20)) == "timeout"


def test_secrets_of_the_environment_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run_program("import os; assert 'HF_TOKEN' not in os.environ, 1", LIMITS) == "passed"


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "not allowed": (
        {"run_untrusted_code": False},
        "runs programs that the model wrote.*--evaluations.pass-at-k.run-untrusted-code true",
    ),
    "too few samples": (
        {"k": (1, 10), "samples": 5},
        "pass@10 needs 10 answers to each problem, and samples is 5; raise it",
    ),
    "no k": ({"k": (0,)}, "must be different numbers of at least 1"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_cannot_be_are_refused_on_paper(name: str) -> None:
    options, message = OPTIONS[name]
    with pytest.raises(ValueError, match=message):
        PassAtKConfig(rows={"name": "x"}, **{"run_untrusted_code": True, **options})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no rows"),
        ([{"prompt": "def f():"}], r"rows.jsonl:1: a problem has the texts .*fields found: 'prompt'"),
        ([{"text": "x", "test_list": []}], r"rows.jsonl:1: a problem has"),
        ([HUMAN_EVAL, MBPP], r"rows.jsonl:2: rows of HumanEval and of MBPP are in one dataset"),
    ],
)
def test_faults_are_one_clear_message(rows: list[dict[str, Any]], message: str) -> None:
    subject = ScriptedSubject(lambda prompt, number: "")
    with pytest.raises(DataError, match=message):
        run(subject, rows)
    with pytest.raises(DataError, match=message):
        PassAtK(PassAtKConfig(rows={"name": "x"}, run_untrusted_code=True), Rows(rows)).check(subject)
    assert not subject.prompts


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        UsageError, match="run only where the kernel keeps them from files and network: Linux on x86_64 or aarch64"
    ):
        run(ScriptedSubject(lambda prompt, number: ""), [HUMAN_EVAL])
