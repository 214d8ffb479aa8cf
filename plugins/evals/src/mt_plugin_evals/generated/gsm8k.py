"""Evaluation ``gsm8k``: grade-school sums, asked as lm-evaluation-harness asks them (``tasks/gsm8k/gsm8k.yaml``, version 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from mt_core import DataError, Dataset, Message, MtConfig, Row, Stream
from mt_core.evaluation import Findings, Subject
from mt_core.generation import GenerationConfig

from ..metrics.number import Number
from .asking import (
    ask,
    find_fitting,
    plain_ids,
    read_rows,
    refuse_no_texts,
    sampling_rules,
    share,
    too_long_notes,
    turn_ids,
)
from .config import Gsm8kConfig

STOP = ("Question:", "</s>", "<|im_end|>")


@dataclass(frozen=True)
class Sum:
    """A question and the text of its answer."""

    row: Row
    question: str
    answer: str

    @property
    def prompt(self) -> str:
        """The question as the model sees it."""
        return f"Question: {self.question}\nAnswer:"


class Gsm8k:
    """Asks sums behind a few shots, and reads the numbers; see ``Evaluation``."""

    def __init__(
        self, config: Gsm8kConfig, rows: Dataset | Stream | None, examples: Dataset | Stream | None = None
    ) -> None:
        self._config, self._rows, self._examples = config, rows, examples

    def check(self, subject: Subject) -> None:
        """Encode what will be asked. Raises ``DataError`` for rows that are none of GSM8K's, too few shots, and prompts that do not fit."""
        sums, prompts = self._questions(subject)
        for each in sums:
            Number(MtConfig()).score("", [each.answer], each.row)  # which needs a number in the row
        find_fitting(subject, [ids for ids, _ in prompts])

    def run(self, subject: Subject) -> Findings:
        """See ``Evaluation``. Shots that do not fit are dropped from the front and counted, the question never."""
        refuse_no_texts(subject, "gsm8k")
        config, metric = self._config, Number(MtConfig())
        sums, prompts = self._questions(subject)
        wishes = GenerationConfig(rules=sampling_rules(0), max_new_tokens=config.max_new_tokens, stop=STOP)
        answers = ask(subject, [ids for ids, _ in prompts], wishes, chat=config.chat)
        scores = [metric.score(said.text, [each.answer], each.row) for said, each in zip(answers, sums, strict=True)]
        figures = {**metric.total(scores), "unfinished": share(answers, lambda answer: answer.is_cut)}
        rows = [
            {
                "id": each.row["id"],
                "question": each.question,
                "expected": each.answer,
                "shots": kept,
                "answer": said.text,
            }
            | {"finish": said.finish, **score}
            for each, (_, kept), said, score in zip(sums, prompts, answers, scores, strict=True)
        ]
        how = f"{metric.signature}; {config.shots} shots, seed {config.seed}, {'chat' if config.chat else 'plain'}"
        notes = too_long_notes(answers, subject.max_seq_len)
        if dropped := sum(config.shots - kept for _, kept in prompts):
            notes.append(
                f"{dropped:,} shots did not fit into the model's context beside their question and were left out"
            )
        return Findings(
            figures=figures,
            rows=rows,
            signatures={name: how for name in figures if not name.endswith("_stderr")},
            notes=notes,
        )

    def _questions(self, subject: Subject) -> tuple[list[Sum], list[tuple[list[int], int]]]:
        """Return the sums, and for each its prompt with the number of its shots."""
        limit = self._config.limit
        every = [sum_of(row) for row in read_rows(self._rows, None if self._examples is None else limit)]
        sums = every[:limit]
        shots = self._draw(sums, every)
        return sums, [self._prompt(subject, *pair) for pair in zip(sums, shots, strict=True)]

    def _draw(self, sums: Sequence[Sum], every: Sequence[Sum]) -> list[list[Sum]]:
        """Draw shots for each question, in order, as lm-evaluation-harness does; none is the question itself."""
        count, draws = self._config.shots, Random(self._config.seed)
        if not count:
            return [[] for _ in sums]
        own = self._examples is None
        pool = list(every) if own else [sum_of(row) for row in read_rows(self._examples, None)]
        if len(pool) < count + own:
            raise DataError(
                f"{count} shots are wanted, and there are {len(pool) - own} other rows to draw them from; lower shots"
            )
        drawn = [draws.sample(pool, count + own) for _ in sums]
        if not own:
            return drawn
        others = [[shot for shot in shots if shot is not each] for each, shots in zip(sums, drawn, strict=True)]
        return [shots[:count] for shots in others]

    def _prompt(self, subject: Subject, each: Sum, shots: Sequence[Sum]) -> tuple[list[int], int]:
        """Ids of shots and question, and how many shots are left beside the longest answer."""
        for first in range(len(shots) + 1):
            ids = self._ids(subject, each, shots[first:])
            if len(ids) + self._config.max_new_tokens <= subject.max_seq_len:
                break
        return ids, len(shots) - first

    def _ids(self, subject: Subject, each: Sum, shots: Sequence[Sum]) -> list[int]:
        if not self._config.chat:
            return plain_ids(subject, "".join(f"{shot.prompt} {shot.answer}\n\n" for shot in shots) + each.prompt)
        turns: list[Message] = []
        for shot in shots:
            turns += [{"role": "user", "content": shot.prompt}, {"role": "assistant", "content": shot.answer}]
        return turn_ids(subject, [*turns, {"role": "user", "content": each.prompt}], each.row["id"])


def sum_of(row: Row) -> Sum:
    """Take a row apart. Raises ``DataError`` for one that is none of GSM8K's."""
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        fields = ", ".join(repr(key) for key in row if key != "id")[:200] or "none"
        raise DataError(
            f"{row['id']}: a row of GSM8K has the texts question and answer (with #### and the number); fields found: {fields}"
        )
    return Sum(row, question, answer)
