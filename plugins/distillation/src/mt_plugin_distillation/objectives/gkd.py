"""Generalized knowledge distillation (GKD, https://arxiv.org/abs/2306.13649): the student learns from a teacher on its own answers.

Shapes: n trained tokens, D model width.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from mt_core import DataError, Message, Row, Sample, conversation, preference
from mt_core.generation import GenerationConfig, SamplingRules

from ..loss import token_divergences
from .distill import TeacherObjective, refuse_media

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mt_core import Template, Tokenizer
    from mt_core.nn import Batch
    from mt_train import Policy, Prompt, Record

    from ..options import GkdConfig

STUDENT, ROW = "student", "row"
"""Writers of the answer of a record."""
DIVERGENCE = "divergence"
_CUT = ("length", "context")
"""Ends of an answer that is not finished."""


class GkdObjective(TeacherObjective):
    """Rows with prompts. In each iteration the student answers a share of them, and the others have the answers of their rows."""

    def __init__(self, tokenizer: Tokenizer, template: Template, config: GkdConfig) -> None:
        super().__init__(tokenizer, config, config, 1.0)
        self._tokenizer, self._template, self._config = tokenizer, template, config
        self.prompts, self.updates, self.passes = config.prompts, config.updates, config.passes
        self.max_new_tokens = config.max_new_tokens

    def encode(self, row: Row) -> Sample:
        """The prompt of a row. Raises ``DataError`` for a row without one, with media, or without an answer where that may be learned."""
        turns = _read_prompt(row)
        refuse_media(row["id"], turns)
        if self._config.on_policy < 1:
            self._answer_of(row)
        ids = self._template.prompt(turns)
        return Sample(ids, [False] * len(ids), row["id"])

    def collect(
        self, prompts: Sequence[Prompt], policy: Policy, *, seed: int, previous: Sequence[Record]
    ) -> list[dict[str, Any]]:
        """One answer to each prompt. Where there is no iteration before, in an evaluation for one, it is compared with the teacher."""
        asked = self._choose(len(prompts), seed)
        config = self._config
        rules = SamplingRules(temperature=config.temperature, top_p=config.top_p, top_k=config.top_k)
        wish = GenerationConfig(rules=rules, max_new_tokens=config.max_new_tokens, seed=seed)
        drawn = iter(policy.generate([prompts[number].ids for number in asked], wish, weights="auto") if asked else ())
        records = []
        for number, prompt in enumerate(prompts):
            found: dict[str, Any] = {"row_id": prompt.row["id"], "group": number}
            if number in asked:
                answer = next(drawn)
                ids = answer.ids if answer.end_id is None else (*answer.ids, answer.end_id)
                found |= {"prompt": list(prompt.ids), "ids": list(ids), "text": answer.text, "finish": answer.finish}
                found["source"] = STUDENT
            else:
                found |= {**self._answer_of(prompt.row), "source": ROW}
            found["prompt_text"] = self._tokenizer.decode(found["prompt"])
            records.append(found)
        if not previous:
            self._compare(records, policy)
        return records

    def learn(self, records: Sequence[Record]) -> tuple[list[Sample], dict[str, float]]:
        """The answers as samples, and figures of the iteration."""
        written = [each for each in records if each["source"] == STUDENT]
        figures = {
            "answer_tokens": sum(len(each["ids"]) for each in records) / len(records),
            "answers_on_policy": len(written) / len(records),
        }
        if written:
            figures["answers_cut"] = sum(each["finish"] in _CUT for each in written) / len(written)
        if all(DIVERGENCE in each for each in records):
            tokens = sum(len(each["ids"]) for each in records)
            total = sum(each[DIVERGENCE] * len(each["ids"]) for each in records)
            figures["answer_divergence"] = total / max(tokens, 1)
        return [_sample_of(each) for each in records], figures

    def _choose(self, count: int, seed: int) -> list[int]:
        """Return the numbers of the prompts that the student answers: on average the share that was asked for."""
        generator = random.Random(seed)
        number = int(self._config.on_policy * count + generator.random())
        return sorted(generator.sample(range(count), min(number, count)))

    def _answer_of(self, row: Row) -> dict[str, Any]:
        """Return prompt and answer of a row as a record has them. Raises ``DataError`` where it has no answer."""
        need = f"With on_policy={self._config.on_policy:g} rows have answers, too: give it one, or set --objective.on-policy 1"
        try:
            turns = conversation(row)
        except DataError as error:
            raise DataError(f"{error} {need}.") from error
        refuse_media(row["id"], turns)
        last = max(n for n, turn in enumerate(turns) if turn["role"] == "assistant")
        before = [{**turn, "train": False} if turn["role"] == "assistant" else turn for turn in turns[:last]]
        encoded = self._template.encode([*before, turns[last]])
        asked = _count_common(self._template.prompt(turns[:last]), encoded.ids)
        trained = [place for place in compress(range(len(encoded.ids)), encoded.trained) if place >= asked]
        if not trained or not trained[0]:
            raise DataError(f"{row['id']}: its last answer has no token to train on behind a prompt. {need}.")
        ids = [int(each) for each in encoded.ids[trained[0] : trained[-1] + 1]]
        most = self._config.max_new_tokens
        found: dict[str, Any] = {
            "prompt": [int(each) for each in encoded.ids[: trained[0]]],
            "ids": ids[:most],
            "text": self._tokenizer.decode(ids[:most]),
            "finish": "length" if len(ids) > most else "eos",
        }
        if encoded.weights is not None:
            found["weights"] = [float(each) for each in encoded.weights[trained[0] :][: len(found["ids"])]]
        return found

    def _compare(self, records: Sequence[dict[str, Any]], policy: Policy) -> None:
        """Put the mean divergence of its tokens into each record."""

        def measure(hidden: Tensor, head: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
            hidden_nD, teacher = self.compared(hidden, batch)
            return {DIVERGENCE: token_divergences(head, hidden_nD, teacher, self.rule)}

        values = policy.measure([_sample_of(each) for each in records], measure)
        for record, each in zip(records, values, strict=True):
            record[DIVERGENCE] = float(each[DIVERGENCE].mean()) if len(each[DIVERGENCE]) else 0.0


def _read_prompt(row: Row) -> list[Message]:
    """The turns that are to be answered, of any shape of a row. Raises ``DataError`` for a row without any."""
    if row.get("choices") is not None and row.get("answer") is not None:
        return conversation(row)[:-1]
    turns, _, _ = preference({**row, "chosen": "one", "rejected": "another"})
    while turns and turns[-1]["role"] == "assistant":
        turns = turns[:-1]
    if not turns:
        fields = ", ".join(str(name) for name in row if name != "id")
        raise DataError(f"{row['id']}: no prompt; fields found: {fields}. Name it: --data.columns '{{prompt: NAME}}'.")
    return turns


def _count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the ids with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


def _sample_of(record: Mapping[str, Any]) -> Sample:
    """A prompt and its answer, whose tokens are trained."""
    prompt, ids, weights = record["prompt"], record["ids"], record.get("weights")
    trained = [False] * len(prompt) + [True] * len(ids)
    weighed = None if weights is None else [1.0] * len(prompt) + list(weights)
    return Sample([*prompt, *ids], trained, record["row_id"], weighed)
