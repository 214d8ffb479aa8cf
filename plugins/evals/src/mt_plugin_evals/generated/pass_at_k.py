"""Evaluation ``pass-at-k``: share of problems that a program among k solves (Codex, https://arxiv.org/abs/2107.03374).

With n answers of which c are right, pass@k is 1 − C(n−c, k) / C(n, k): the chance that k of them, drawn without replacement, have a
right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mt_core import DataError, Dataset, Row, Stream
from mt_core.evaluation import Findings, Subject
from mt_core.generation import GenerationConfig

from ..metrics.totals import means
from .asking import Answer, ask, find_fitting, plain_ids, read_rows, refuse_no_texts, sampling_rules, too_long_notes
from .config import PassAtKConfig
from .sandbox import Limits, Verdict, refuse_unsafe_platform, run_program

_HUMAN_EVAL = ("prompt", "test", "entry_point")
_HUMAN_EVAL_STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where a function has ended, as in the paper."""
_MBPP_STOP = ("[DONE]",)
_SEEDS = 1_000_003
"""Seeds of two answers to a problem are so far apart."""


@dataclass(frozen=True)
class Problem:
    """Prompt that the model goes on with, what its program begins and ends with, and where its answer ends."""

    row: Row
    prompt: str
    before: str
    after: str
    stop: tuple[str, ...]

    def program(self, answer: str) -> str:
        """Return the program with an answer in it."""
        return f"{self.before}{answer}\n{self.after}\n"


class PassAtK:
    """Lets the model write programs, and runs them; see ``Evaluation``."""

    def __init__(self, config: PassAtKConfig, rows: Dataset | Stream | None) -> None:
        self._config, self._rows = config, rows

    def check(self, subject: Subject) -> None:
        """Raise what ``run`` does before the model writes, and ``DataError`` for prompts that do not fit."""
        refuse_unsafe_platform()
        find_fitting(subject, self._problems(subject)[1])

    def run(self, subject: Subject) -> Findings:
        """See ``Evaluation``. Raises ``UsageError`` where programs cannot be kept from files and network."""
        refuse_unsafe_platform()
        refuse_no_texts(subject, "pass-at-k")
        config = self._config
        problems, prompts = self._problems(subject)
        rounds = [self._round(subject, prompts, problems[0].stop, number) for number in range(config.samples)]
        limits = Limits(config.cpu_seconds, config.memory_mib * 2**20)
        verdicts = [
            [run_program(each.program(answers[at].text), limits) for answers in rounds]
            for at, each in enumerate(problems)
        ]
        return self._findings(problems, rounds, verdicts, subject.max_seq_len)

    def _problems(self, subject: Subject) -> tuple[list[Problem], list[list[int]]]:
        """Return the rows as they are asked, and the prompt of each. Raises ``DataError`` for rows of two sets."""
        problems = [problem_of(row) for row in read_rows(self._rows, self._config.limit)]
        if odd := next((each for each in problems if each.stop != problems[0].stop), None):
            raise DataError(f"{odd.row['id']}: rows of HumanEval and of MBPP are in one dataset; evaluate them apart")
        return problems, [plain_ids(subject, each.prompt) for each in problems]

    def _round(
        self, subject: Subject, prompts: Sequence[Sequence[int]], stop: tuple[str, ...], number: int
    ) -> list[Answer]:
        """One answer to each problem: what is drawn follows from seed, problem and round, however many rounds there are."""
        wishes = GenerationConfig(
            rules=sampling_rules(self._config.temperature, top_p=self._config.top_p),
            max_new_tokens=self._config.max_new_tokens,
            stop=stop,
            seed=self._config.seed * _SEEDS + number,
        )
        return ask(subject, prompts, wishes, chat=False)

    def _findings(
        self,
        problems: Sequence[Problem],
        rounds: Sequence[Sequence[Answer]],
        verdicts: Sequence[Sequence[Verdict]],
        most: int,
    ) -> Findings:
        config = self._config
        scores = [
            {
                **{f"pass_at_{k}": pass_at_k(config.samples, each.count("passed"), k) for k in config.k},
                "unread": each.count("unreadable") / config.samples,
                "timeout": each.count("timeout") / config.samples,
            }
            for each in map(list, verdicts)
        ]
        rows = [
            {
                "id": problem.row["id"],
                "task_id": problem.row.get("task_id"),
                "answers": [answers[at].text for answers in rounds],
                "verdicts": list(verdicts[at]),
                **scores[at],
            }
            for at, problem in enumerate(problems)
        ]
        drawn = f"temperature {config.temperature}, top_p {config.top_p}" if config.temperature else "greedy"
        how = f"1 - C(n-c,k)/C(n,k), n {config.samples}, {drawn}, seed {config.seed}, {config.cpu_seconds} s, {config.memory_mib} MiB"
        figures = means(scores)
        return Findings(
            figures=figures,
            rows=rows,
            signatures={name: how for name in figures if not name.endswith("_stderr")},
            notes=too_long_notes([answer for answers in rounds for answer in answers], most),
        )


def pass_at_k(answers: int, right: int, k: int) -> float:
    """Return the chance that k of so many answers, drawn without replacement, have a right one."""
    return 1.0 - math.comb(answers - right, k) / math.comb(answers, k)


def problem_of(row: Row) -> Problem:
    """Take a row apart. Raises ``DataError`` for one that is of neither form."""
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    if all(name in texts for name in _HUMAN_EVAL):
        check = f"{texts['test']}\ncheck({texts['entry_point']})"
        return Problem(row, texts["prompt"], texts["prompt"], check, _HUMAN_EVAL_STOP)
    task, tests = texts.get("text", texts.get("prompt")), row.get("test_list")
    if task is None or not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        fields = ", ".join(repr(key) for key in row if key != "id")[:200] or "none"
        raise DataError(
            f"{row['id']}: a problem has the texts prompt, test and entry_point (HumanEval), or text and a list test_list (MBPP);"
            f" fields found: {fields}"
        )
    lines = "\n".join(tests)
    prompt = f"You are an expert Python programmer, and here is your task: {task} Your code should pass these tests:\n\n{lines}\n[BEGIN]\n"
    setup = texts.get("test_setup_code", "")
    return Problem(row, prompt, f"{setup}\n", "\n".join([*_imports(row), lines]), _MBPP_STOP)


def _imports(row: Row) -> list[str]:
    """Return the lines that the sanitized set has in place of a set-up. Raises ``DataError``."""
    given = row.get("test_imports") or []
    lines = [given] if isinstance(given, str) else given
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise DataError(f"{row['id']}: field 'test_imports' must be a list of lines of Python, got {given!r:.60}")
    return lines
