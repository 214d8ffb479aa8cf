"""Scores of a reward model for conversations, and the best of several answers.

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mt_core import DataError, Row, Sample, UsageError, WeightsError
from mt_core.nn import TokenObjective, objective_modules

from .objectives.shapes import Answers, read_answers
from .objectives.value_head import ValueHead

if TYPE_CHECKING:
    from mt_core import Message
    from mt_train import LoadedModel

    from .reward_functions.base import Answer


class Scorer:
    """A reward model that is asked: the score of a conversation is what its head says at the last token."""

    def __init__(self, loaded: LoadedModel) -> None:
        """Raise ``UsageError`` for a model without a head for scores, or one that cannot write conversations down."""
        head, template = objective_modules(loaded.model.head), loaded.template
        if head is None or isinstance(head, ValueHead):  # what a text is going to be worth is no score of it
            raise UsageError(
                "the model has no head for scores; give a run of --objective reward, or a folder of weights with one (mt-convert,"
                " mt-export --merge)"
            )
        if template is None:
            raise UsageError(
                "the model has no template, so conversations cannot be written down; load it with load_run"
            )
        self._loaded, self._head, self._template = loaded, head, template
        self._objective = TokenObjective(pad_id=loaded.tokenizer.pad_id or 0)

    @property
    def max_seq_len(self) -> int:
        """Return the most that the model reads (tokens)."""
        return self._loaded.max_seq_len

    def score(self, conversations: Sequence[Sequence[Message]], *, batch_size: int = 8) -> list[float]:
        """Return the score of each conversation, in their order. Raises ``DataError`` for one that is longer than the model reads."""
        encoded = [self.encode(each) for each in conversations]
        found = [0.0] * len(encoded)
        for numbers in batches(encoded, batch_size):
            for number, score in zip(numbers, self.score_ids([encoded[each] for each in numbers]), strict=True):
                found[number] = score
        return found

    def encode(self, conversation: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation.

        Raises ``DataError`` for one that is longer than the model reads, cannot be written, or has a place for media.
        """
        self._refuse_media(conversation)
        ids = list(self._template.encode(conversation).ids)
        if len(ids) > self.max_seq_len:
            raise DataError(
                f"the conversation has {len(ids)} tokens, and the model reads {self.max_seq_len}; shorten it"
            )
        return ids

    def answer_ids(self, answer: Answer) -> list[int]:
        """Return the tokens of a prompt with an answer to it, as the model has learned to read conversations.

        Where the template gives the same tokens for the prompt, and the tokenizer reads the answer's as its text, these are taken as
        they are; another tokenizer or template gets the conversation, and an answer without an end one, and one that called tools.
        """
        self._refuse_media(answer.prompt)
        if answer.turns:
            return list(self._template.encode([*answer.prompt, *answer.turns]).ids)
        raw = {"raw": True} if any(turn.get("raw") for turn in answer.prompt) else {}
        whole = self._template.encode([*answer.prompt, {"role": "assistant", "content": answer.text, **raw}])
        begun = len(answer.prompt_ids)
        ids, last = list(answer.ids), max((place for place, trained in enumerate(whole.trained) if trained), default=-1)
        is_own = (
            answer.finish == "eos"
            and 0 < begun <= last
            and list(whole.ids[:begun]) == list(answer.prompt_ids)
            and whole.ids[last] == ids[-1]
            and self._loaded.tokenizer.decode(ids[:-1]) == answer.text
        )
        return [*answer.prompt_ids, *ids, *whole.ids[last + 1 :]] if is_own else list(whole.ids)

    def _refuse_media(self, conversation: Sequence[Message]) -> None:
        """Raise ``DataError`` for a place of media that the model has learned to read: as text it would be something else."""
        said = " ".join(str(turn.get("content") or "") for turn in conversation)
        if kind := next((each for each in sorted(self._loaded.media_kinds) if f"<{each}>" in said), None):
            raise DataError(
                f"the conversation has <{kind}>, and answers are scored as text alone, without the {kind} that the model has learned to"
                " read; leave such rows out, or train a reward model without encoders"
            )

    def check_prompt(self, answer: Answer) -> None:
        """Raise ``DataError`` for a prompt that the template cannot write down, or that has a place for media."""
        self._refuse_media(answer.prompt)
        self._template.prompt(answer.prompt)

    @torch.inference_mode()
    def score_ids(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return the score of each of these texts, which are read at once."""
        device = next(self._loaded.model.parameters()).device
        samples = [[Sample(ids, [True] * len(ids), "")] for ids in rows]
        batch = self._objective.collate(samples, length=max(map(len, rows))).with_index().to(device)
        hidden_BTD = self._loaded.model(batch)
        last_B = torch.tensor([len(ids) - 1 for ids in rows], device=device)
        scores: list[float] = self._head(hidden_BTD[torch.arange(len(rows), device=device), last_B]).tolist()
        return scores


def batches(rows: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Return the numbers of rows that are read together: of about the same length."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def score_rows(scorer: Scorer, rows: Sequence[Row], *, batch_size: int = 8) -> Iterator[dict[str, Any]]:
    """Yield for each row its id, the ``scores`` of its answers, the number of the ``best`` one, and of a pair whether that was chosen.

    Raises ``DataError``, and ``WeightsError`` for a score that is not a number: the highest one of NaNs would be that of the first answer.
    """
    asked = [read_answers(row) for row in rows]
    flat = [[*each.prompt, *answer] for each in asked for answer in each.answers]
    try:
        scores = iter(scorer.score(flat, batch_size=batch_size))
    except DataError as error:
        raise _name_row(scorer, asked, error) from error
    for each in asked:
        own = [next(scores) for _ in each.answers]
        _require_finite(each.row_id, own)
        best = max(range(len(own)), key=own.__getitem__)  # the first of equals
        found: dict[str, Any] = {"id": each.row_id, "scores": own, "best": best}
        yield found | ({"correct": own[0] > own[1]} if each.are_sides else {})


def _name_row(scorer: Scorer, asked: Sequence[Answers], error: DataError) -> DataError:
    """Return the error with the row and the number of the first answer that cannot be read."""
    for each in asked:
        for number, answer in enumerate(each.answers, 1):
            try:
                scorer.encode([*each.prompt, *answer])
            except DataError as own:
                return DataError(f"{each.row_id}: answer {number}: {own}")
    return error


def _require_finite(row_id: str, scores: Sequence[float]) -> None:
    for number, score in enumerate(scores, 1):
        if not math.isfinite(score):
            raise WeightsError(
                f"{row_id}: the reward model's score of answer {number} is {score}, which is no finite number, so that no answer is the"
                " best. Its weights are broken, or overflow in this precision: take another checkpoint, or weights written in fp32"
            )


def best_row(row: Row, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompt of a row with its best answer, in the form that ``sft`` reads."""
    each = read_answers(row)
    answer, score = each.answers[found["best"]], max(found["scores"])
    turns = [{key: value for key, value in turn.items() if key != "raw"} for turn in (*each.prompt, *answer)]
    tools = turns[0].pop("tools", None)  # templates find them in the first turn, rows have them beside their turns
    plain = tools is None and len(answer) == 1 and turns[-1].keys() == {"role", "content"}
    if plain and len(each.prompt) == 1 and each.prompt[0].get("raw") and turns[0].keys() == {"role", "content"}:
        return {"prompt": turns[0]["content"], "response": turns[-1]["content"], "score": score}
    if plain and each.prompt and "input" in each.prompt[-1]:  # which the template alpaca tells from the instruction
        asked = {name: row[name] for name in _ALPACA if row.get(name) is not None}
        return {**asked, "output": turns[-1]["content"], "score": score}
    return {"messages": turns, **({} if tools is None else {"tools": tools}), "score": score}


_ALPACA = ("system", "history", "instruction", "input")
"""Fields of a row of Alpaca's before its answer."""
