"""Lines that a person reads: perplexity, and the figures of a yes-or-no task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from mt_core import MtConfig, StepRecord, TaskPrint

CASES = ("true_positive", "false_positive", "false_negative", "true_negative")


class LineConfig(MtConfig):
    """The printers have no options."""


def build_perplexity(config: LineConfig) -> TaskPrint:
    """See ``perplexity_line``."""
    return perplexity_line


def build_classification(config: LineConfig) -> TaskPrint:
    """See ``classification_line``."""
    return classification_line


def perplexity_line(records: Sequence[StepRecord]) -> str:
    """Perplexity (exp of the mean loss), token accuracy where the objective counts it, rate and speed.

    A loss that is no mean over tokens is shown as it is: its exponential would be no perplexity.
    """
    plain = any(not getattr(record, "counts_tokens", True) for record in records)
    parts = [
        *_both(records, "loss", *(("loss", "{:.4f}".format) if plain else ("perplexity", _perplexity))),
        *_both(records, "token_accuracy", "token accuracy", _share),
    ]
    return " | ".join([*parts, *_speed(records)])


def classification_line(records: Sequence[StepRecord]) -> str:
    """Accuracy, precision, recall, F1 and Matthews' correlation (MCC) of marked tokens, of the newest evaluation or else of
    these steps. They come from ``--objective.answers``; a record without them is shown with its loss, and says so."""
    shown, title = _newest(records), "eval "
    if not _has_cases(shown):
        shown, title = _mean_of_steps(records), ""
    parts = _both(records, "loss", "loss", "{:.4f}".format)
    if _has_cases(shown):
        parts += [f"{title}{name} {value:.3f}" for name, value in binary_figures(shown).items()]
    elif parts:
        parts.append("no answers (--objective.answers names them)")
    return " | ".join([*parts, *_speed(records)])


def binary_figures(cases: Mapping[str, float]) -> dict[str, float]:
    """Compute figures from shares or counts of the four cases; a figure whose denominator is 0 is 0, as scikit-learn has it."""
    tp, fp, fn, tn = (cases[name] for name in CASES)
    return {
        "accuracy": _ratio(tp + tn, tp + fp + fn + tn),
        "precision": _ratio(tp, tp + fp),
        "recall": _ratio(tp, tp + fn),
        "f1": _ratio(2 * tp, 2 * tp + fp + fn),
        "mcc": _ratio(tp * tn - fp * fn, math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _perplexity(loss: float) -> str:
    return "inf" if loss > 700 else f"{math.exp(loss):,.2f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _both(records: Sequence[StepRecord], key: str, name: str, form: Callable[[float], str]) -> list[str]:
    """The mean over these steps, and the newest evaluation's, as far as they are there."""
    mean, newest = _mean_of_steps(records).get(key), _newest(records).get(key)
    named = [(name, mean), (f"eval {name}", newest)]
    return [f"{title} {form(value)}" for title, value in named if value is not None]


def _mean_of_steps(records: Sequence[StepRecord]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for record in records:
        own = {"loss": getattr(record, "loss", None), **getattr(record, "metrics", {})}
        for name, value in own.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}


def _newest(records: Sequence[StepRecord]) -> dict[str, float]:
    """The figures of the newest evaluation, without ``eval_``."""
    newest: dict[str, float] = {}
    for record in records:
        newest.update(getattr(record, "evaluation", {}))
    return {name.removeprefix("eval_"): value for name, value in newest.items()}


def _has_cases(figures: Mapping[str, float]) -> bool:
    return all(name in figures for name in CASES)


def _speed(records: Sequence[StepRecord]) -> list[str]:
    rate = getattr(records[-1], "lr", None) if records else None
    speeds = [speed for record in records if (speed := getattr(record, "tokens_per_second", None)) is not None]
    return [
        *([] if rate is None else [f"lr {rate:.2e}"]),
        *([f"{sum(speeds) / len(speeds):,.0f} tokens/s"] if speeds else []),
    ]
