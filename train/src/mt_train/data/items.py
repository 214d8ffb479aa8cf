"""Samples of several documents that are too long, such as the two sides of a pair: one rule cuts all of them.

The prompt of a document is what comes before its first trained token, its answer is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from mt_core.errors import DataError
from mt_core.rows import Rejected, Sample
from mt_train.data.lengths import NOTHING_LEFT, Lengths, pick, refuse_excess, without_cut_spans

ANSWERS_TOO_LONG = "answers alone longer than data.{key}; --data.truncation right cuts their ends"


def fit_item(sample: Sample, lengths: Lengths) -> list[Sample] | Rejected:
    """The item as it is, cut, or why it is dropped.

    ``left`` and ``middle`` shorten the prompts to one length, and leave the answers alone; ``right`` shortens the longest documents to
    one length, so that these lose their stop token. ``data.max_len`` is for all documents together, ``data.max_source_len`` and
    ``data.max_target_len`` are for each. Raises ``DataError`` under ``truncation=error``, and under ``split``: an item stays one.
    """
    documents = [range(each.start, each.stop) for each in sample.spans]
    prompts = [_prompt_length(sample, places) for places in documents]
    answers = [len(places) - prompt for places, prompt in zip(documents, prompts, strict=True)]
    limits = {
        "max_len": (len(sample.ids), lengths.max_len),
        "max_source_len": (max(prompts), lengths.max_source_len),
        "max_target_len": (max(answers), lengths.max_target_len),
    }
    too_long = [key for key, (found, most) in limits.items() if most is not None and found > most]
    if not too_long:
        return [sample]
    found, most = limits[too_long[0]]
    problem = f"{found} tokens exceed data.{too_long[0]}={most}"
    if lengths.truncation == "split":
        raise DataError(
            f"{sample.row_id}: {problem}; its {len(documents)} documents belong together and are not split. Use --data.truncation left,"
            " right, middle or drop"
        )
    if refused := refuse_excess(sample, lengths, too_long[0], problem):
        return refused
    if lengths.truncation == "right":
        prompts = [_clip(each, lengths.max_source_len) for each in prompts]
        answers = [_clip(each, lengths.max_target_len) for each in answers]
        level = _level([sum(each) for each in zip(prompts, answers, strict=True)], lengths.max_len)
        answers = [min(answer, level - prompt) for prompt, answer in zip(prompts, answers, strict=True)]
        if min(answers) < 1:
            return Rejected(NOTHING_LEFT, sample.row_id)
    else:
        if "max_target_len" in too_long:
            return Rejected(ANSWERS_TOO_LONG.format(key="max_target_len"), sample.row_id)
        level = _level([_clip(each, lengths.max_source_len) for each in prompts], lengths.max_len - sum(answers))
        prompts = [min(each, level) for each in prompts]
        if level < 1:
            return Rejected(ANSWERS_TOO_LONG.format(key="max_len"), sample.row_id)
    kept = [
        _choose_places(sample, places, prompt, answer, lengths)
        for places, prompt, answer in zip(documents, prompts, answers, strict=True)
    ]
    kept = [without_cut_spans(sample, places) for places in kept]
    if not all(any(sample.trained[place] for place in places[1:]) for places in kept):
        return Rejected(NOTHING_LEFT, sample.row_id)
    return [pick(sample, [place for places in kept for place in places], [len(places) for places in kept])]


def _prompt_length(sample: Sample, places: range) -> int:
    return next((number for number, place in enumerate(places) if sample.trained[place]), len(places))


def _clip(length: int, limit: int | None) -> int:
    return length if limit is None else min(length, limit)


def _level(lengths: Sequence[int], most: int) -> int:
    """The largest length such that none is above it, and all together are not above ``most``; below 1 where there is none."""
    left = most
    for number, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - number)
        if share < length:
            return share
        left -= length
    return max(lengths)


def _choose_places(sample: Sample, places: range, prompt: int, answer: int, lengths: Lengths) -> list[int]:
    """So many places of the prompt, by the rule of the truncation, and the first ones of the answer."""
    first = _prompt_length(sample, places)
    if lengths.truncation == "right":
        front = prompt
    elif lengths.truncation == "middle":
        front = prompt - prompt // 2
    else:
        front = int(sample.ids[places[0]] == lengths.bos_id)
    front = min(front, prompt)
    return [*places[:front], *places[first - (prompt - front) : first], *places[first : first + answer]]
