"""Figures of all answers: over all questions, by subject and by category."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mt_core.evaluation import Findings

from ..figures import mean, mean_error, pooled_error, standard_error
from .answers import NOISE, Answer

_BY_LENGTH = ("accuracy_norm", "accuracy_bytes")
"""Measures that say nothing new about letters."""
_MICRO = "micro: all questions count alike"
_MACRO = "macro: mean over subjects, each counts alike"

Groups = Mapping[str, Sequence[Answer]]


def summarize(
    answers: Sequence[Answer], categories: Mapping[str, str], counts: Mapping[str, int], *, letters: bool
) -> Findings:
    """Return figures, tables and rows of the answers; ``counts`` are what was left out of them."""
    groups = _group_by_subject(answers)
    measures = [name for name in answers[0].measures if not (letters and name in _BY_LENGTH)]
    figures = _figures(measures, list(groups.values()))
    signatures = {}
    if len(groups) > 1:
        parts = [_values(group, "accuracy") for group in groups.values()]
        figures["accuracy_macro"] = mean([mean(part) for part in parts])
        figures |= _error("accuracy_macro", mean_error(parts))
        signatures = {"accuracy": _MICRO, "accuracy_macro": _MACRO}
    figures |= {name: count for name, count in counts.items() if count}
    return Findings(
        figures=figures,
        groups=dict(_tables(measures, groups, categories)),
        rows=[answer.row() for answer in answers],
        signatures=signatures,
        notes=list(notes_of(answers, counts)),
    )


def _group_by_subject(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Return the answers by subject."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.asked.question.group, []).append(answer)
    return found


def _tables(
    measures: Sequence[str], groups: Groups, categories: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, float]]]:
    for name, answers in groups.items():
        if name:
            yield f"subject/{name}", {**_figures(measures, [answers]), "questions": len(answers)}
    for category in sorted({categories[name] for name in groups if name in categories}):
        parts = [answers for name, answers in groups.items() if categories.get(name) == category]
        figures = _figures(measures, parts)
        macro = mean([mean(_values(part, "accuracy")) for part in parts])
        yield f"category/{category}", {**figures, "accuracy_macro": macro, "questions": sum(map(len, parts))}


def _figures(measures: Sequence[str], parts: Sequence[Sequence[Answer]]) -> dict[str, float]:
    """Return each measure over all questions; of several parts the standard error is that within each."""
    figures: dict[str, float] = {}
    for name in measures:
        values = [_values(part, name) for part in parts]
        figures[name] = mean([value for part in values for value in part])
        figures |= _error(name, standard_error(values[0]) if len(values) == 1 else pooled_error(values))
    return figures


def _values(answers: Sequence[Answer], measure: str) -> list[float]:
    return [answer.measures[measure] for answer in answers]


def _error(name: str, error: float | None) -> dict[str, float]:
    return {} if error is None else {f"{name}_stderr": error}


def notes_of(answers: Sequence[Answer], counts: Mapping[str, int]) -> Iterator[str]:
    """Return notes for a reader of the figures: how many questions they are of, and what is not in them."""
    yield f"{len(answers)} questions"
    if counts["dropped_shots"]:
        yield f"{counts['dropped_shots']} shots were dropped from the front of prompts that are longer than the context"
    if counts["too_long"]:
        yield f"{counts['too_long']} questions were left out: they are longer than the context"
    if counts["unanswered"]:
        yield f"{counts['unanswered']} rows were left out: they have no answer"
    if close := sum(answer.close for answer in answers):
        yield f"{close} questions have two best choices within {NOISE} nats: in bf16 they may turn"
