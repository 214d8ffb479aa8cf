"""Scores of rewards: who is asked, what is checked, what is skipped, and how long a reward may take."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))

from one_rank import OneRank

from mt_core import ComponentError, UsageError
from mt_plugin_alignment import Answer
from mt_plugin_alignment.reward_functions.python_file import PythonConfig, PythonReward
from mt_plugin_alignment.scores import BadAnswers, ScoreOptions, score_answers
from mt_plugin_alignment.time_limit import TimeLimitReached, call_within

NAN = math.nan


def answer(text: str, number: int = 1) -> Answer:
    return Answer(text, [1] * len(text), "eos", {"id": f"row {number}"}, 0)


ANSWERS = [answer("a", 1), answer("b", 2), answer("c", 3)]


class Says:
    """A reward that gives what it is given, or what a function makes of the answers."""

    def __init__(self, scores: Sequence[Any] | Callable[[Sequence[Answer]], Sequence[Any]]) -> None:
        self._scores = scores

    def score(self, answers: Sequence[Answer]) -> Any:
        return self._scores(answers) if callable(self._scores) else self._scores


class Together(Says):
    """One that all ranks compute."""

    def score_together(self, answers: Sequence[Answer], policy: Any) -> Any:
        return policy.divide(answers, lambda share: [2 * score for score in self.score(share)])


def scored(reward: Any, **options: Any) -> list[float | None]:
    return score_answers({"mine": reward}, ANSWERS, OneRank(), ScoreOptions(**options))["mine"]  # type: ignore[arg-type]


def test_a_reward_is_asked_once_and_one_that_all_ranks_compute_is_not_shared() -> None:
    policy = OneRank()
    rewards = {"one": Says([1, 2.5, None]), "both": Together([1.0, 2.0, 3.0])}
    found = score_answers(rewards, ANSWERS, policy)  # type: ignore[arg-type]
    assert found == {"one": [1.0, 2.5, None], "both": [2.0, 4.0, 6.0]}
    assert policy.asked == 1


@pytest.mark.parametrize("kind", [Says, Together])
@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (lambda answers: [1 / 0], "reward mine failed: ZeroDivisionError: division by zero"),
        ([1.0], "reward mine gives 1 scores for 3 answers; give one for each"),
        ([0.0, 1.0, NAN], "reward mine gives nan for an answer to row 3; a score is a finite number, or None"),
        ([0.0, -math.inf, 1.0], "reward mine gives -inf for an answer to row 2"),
        ([0.0, 10**400, 1.0], "reward mine gives [12]000000.* for an answer to row 2; a score is a finite number"),
    ],
)
def test_a_reward_that_cannot_be_used_is_named_with_the_row(kind: type, scores: Any, says: str) -> None:
    with pytest.raises(ComponentError, match=says):
        scored(kind(scores))


def test_a_failure_is_named_with_the_users_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of the file, not that of the library that it calls; from another directory, with the path."""
    file = tmp_path / "mine.py"
    file.write_text("import json\n\ndef score(answers):\n    return [json.loads(each.text) for each in answers]\n")
    scores = PythonReward(PythonConfig(path=file))
    says = r"reward mine failed: JSONDecodeError: Expecting value: .* \({}, line 4; --debug shows where from\)"
    with pytest.raises(ComponentError, match=says.format(file)):
        scored(scores)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ComponentError, match=says.format("mine.py")):
        scored(PythonReward(PythonConfig(path=Path("mine.py"))), score_timeout=None)
    with pytest.raises(ComponentError, match=r"decoder\.py, line \d+; --debug shows where from"):
        scored(Says(lambda answers: json.loads("")))


@pytest.mark.parametrize("found", [1.5, None])
def test_one_number_for_all_answers_is_refused_as_what_it_is(found: Any) -> None:
    """It is no fault of the file that goes through the scores."""
    for bad in ("error", "skip"):
        with pytest.raises(
            ComponentError, match=f"reward mine gives {found} for 3 answers; it gets all answers at once"
        ):
            scored(Says(lambda answers: found), on_bad_score=bad)


def test_what_is_no_number_is_refused_whatever_it_is() -> None:
    for score in ("good", [1.0], {}):
        with pytest.raises(ComponentError, match="for an answer to row 1; a score is a finite number"):
            scored(Says([score, 0.0, 0.0]))


def raises_for_b(answers: Sequence[Answer]) -> list[float]:
    if any(each.text == "b" for each in answers):
        raise KeyError("verdict")
    return [1.0 for _ in answers]


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ([1.0, NAN, 1.0], "nan for an answer to row 2"),
        (raises_for_b, "KeyError: 'verdict', for an answer to row 2"),
    ],
)
def test_answers_for_which_a_reward_fails_count_as_unscored_where_asked(
    scores: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scored(Says(scores), on_bad_score="skip") == [1.0, None, 1.0]
    assert f"reward mine: 1 of 3 answers count as unscored (first: {says})" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ComponentError, match=r"max-bad-scores is 0; the first: .*row 2\. Repair the reward"):
        scored(Says(scores), on_bad_score="skip", max_bad_scores=0)


def test_calls_of_one_iteration_share_the_bound_of_bad_answers(capsys: pytest.CaptureFixture[str]) -> None:
    rewards, options = {"mine": Says([1.0, NAN, 1.0]), "both": Together([1.0, 1.0, 1.0])}, {"on_bad_score": "skip"}
    bound, bad = ScoreOptions(**options, max_bad_scores=2), BadAnswers()  # type: ignore[arg-type]
    for _ in range(2):
        assert score_answers(rewards, ANSWERS, OneRank(), bound, bad=bad)["mine"] == [1.0, None, 1.0]  # type: ignore[arg-type]
        assert "1 of 3 answers count as unscored" in " ".join(capsys.readouterr().err.split()), "those of this call"
    with pytest.raises(
        ComponentError, match=r"reward mine has failed for 3 answers of an iteration, .* is 2; the first"
    ):
        score_answers(rewards, ANSWERS, OneRank(), bound, bad=bad)  # type: ignore[arg-type]
    score_answers(rewards, ANSWERS, OneRank(), bound, bad=BadAnswers())  # type: ignore[arg-type]


def test_another_number_of_scores_is_never_skipped() -> None:
    with pytest.raises(ComponentError, match="2 scores for 3 answers"):
        scored(Says([1.0, 2.0]), on_bad_score="skip")


# ---------------------------------------------------------------------------------------------------------------- time


def sleep(answers: Sequence[Answer]) -> list[float]:
    time.sleep(60)
    return []


def spin(answers: Sequence[Answer]) -> list[float]:
    while True:
        try:
            sum(range(1000))
        except Exception:  # noqa: BLE001 - a reward that catches what it can
            continue


@pytest.mark.parametrize("hang", [sleep, spin])
def test_a_reward_that_hangs_ends_as_an_error_with_its_name(hang: Any) -> None:
    began = time.monotonic()
    with pytest.raises(ComponentError, match=r"reward mine has given no scores for 3 answers in 0\.2 seconds"):
        scored(Says(hang), score_timeout=0.2)
    assert time.monotonic() - began < 10


def test_a_rewards_own_timeout_goes_before_that_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import time\ndef score(answers):\n    time.sleep(60)\n")
    reward = PythonReward(PythonConfig(path=file, timeout=0.2))
    with pytest.raises(ComponentError, match=r"in 0\.2 seconds"):
        scored(reward)


def test_a_function_that_catches_everything_is_told_again() -> None:
    caught: list[BaseException] = []

    def stubborn() -> None:
        while True:
            try:
                time.sleep(60)
            except BaseException as error:
                caught.append(error)
                if len(caught) == 2:
                    raise

    with pytest.raises(TimeLimitReached):
        call_within(0.1, stubborn)
    assert len(caught) == 2


def test_outside_the_main_thread_there_is_a_bound_too() -> None:
    found: list[Any] = []

    def run() -> None:
        found.append(call_within(5, lambda: "in time"))
        try:
            call_within(0.1, lambda: time.sleep(1))
        except TimeLimitReached as error:
            found.append(error)
        try:
            call_within(5, lambda: [][0])
        except IndexError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [type(each) for each in found] == [str, TimeLimitReached, IndexError]


def test_nothing_is_left_of_a_bound_that_was_not_reached() -> None:
    threads = threading.active_count()
    assert call_within(0.2, lambda: 3) == 3
    assert threading.active_count() == threads
    time.sleep(0.4)  # a signal now would end the tests


# --------------------------------------------------------------------------------------------------------------- files


def test_a_reward_has_the_prompt_the_row_and_the_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    seen_file = tmp_path / "seen.json"
    lines = [
        "import json",
        "from pathlib import Path",
        "def score(answers):",
        "    seen = [[list(each.prompt), each.row, each.text] for each in answers]",
        f"    Path({str(seen_file)!r}).write_text(json.dumps(seen))",
        "    return [0.5 for _ in answers]",
    ]
    file.write_text("\n".join(lines))
    turn = {"role": "user", "content": "go"}
    seen = Answer("gone", [1], "eos", {"id": "row", "answer": "x"}, 0, [turn], [3, 4])
    assert PythonReward(PythonConfig(path=file)).score([seen]) == [0.5]
    assert json.loads(seen_file.read_text()) == [[[turn], {"id": "row", "answer": "x"}, "gone"]]


def test_a_file_that_is_none_or_does_not_run_is_refused_by_its_path(tmp_path: Path) -> None:
    broken, without = tmp_path / "broken.py", tmp_path / "without.py"
    broken.write_text("1 / 0")
    without.write_text("x = 1")
    (named := tmp_path / "named.py").write_text("from math import sqrt\ndef judge(answers):\n    return [sqrt(1)]\n")
    (text := tmp_path / "rules.txt").write_text("x = 1")
    for path, says in (
        (tmp_path / "none.py", r"none\.py does not exist; write a file with a function score"),
        (text, r"rules\.txt is no Python file; its name has to end in \.py"),
        (broken, "broken.py does not run: ZeroDivisionError"),
        (without, "without.py has no function 'score'; name it"),
        (named, "named.py has no function 'score', but judge; name it"),
    ):
        with pytest.raises(UsageError, match=says):
            PythonReward(PythonConfig(path=path))


def test_a_file_may_have_dataclasses_and_two_rewards_may_be_one_file(tmp_path: Path) -> None:
    """A dataclass looks for its module where modules are kept; a file that does not run leaves nothing there."""
    file, before = tmp_path / "mine.py", set(sys.modules)
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Verdict:\n    points: float\n\n"
        "SEEN = []\n\ndef score(answers):\n    SEEN.extend(answers)\n    return [Verdict(float(len(SEEN))).points for _ in answers]\n"
    )
    one, other = (PythonReward(PythonConfig(path=file)) for _ in range(2))
    assert (one.score(ANSWERS), other.score(ANSWERS)) == ([3.0] * 3, [3.0] * 3), "each has variables of its own"
    assert len(found := set(sys.modules) - before) == 2
    file.write_text("1 / 0")
    with pytest.raises(UsageError, match="does not run"):
        PythonReward(PythonConfig(path=file))
    assert set(sys.modules) - before == found


@pytest.mark.parametrize("options", [{"score_timeout": 0}, {"max_bad_scores": -1}, {"on_bad_score": "zero"}])
def test_bounds_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ScoreOptions(**options)
