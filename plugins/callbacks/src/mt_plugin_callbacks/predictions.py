"""``predictions.jsonl``: what the model wrote at each evaluation, beside what was expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mt_core import CallbackContext, MtConfig, MtError, StepLines

FILE = "predictions.jsonl"


class PredictionsConfig(MtConfig):
    """The predictions have no options: ``eval.samples`` says how many held-out prompts, ``eval.sample_tokens`` how long."""


class Predictions:
    """Scores the texts of each evaluation. Lines have step, row_id, prompt, expected, text, ``match`` (the same, but for white
    space around it) and ``overlap`` (F1 of the words, as SQuAD has it, https://arxiv.org/abs/1606.05250)."""

    def __init__(self, config: PredictionsConfig) -> None:
        self._lines: StepLines | None = None
        self._started = 0

    def on_run_start(self, context: CallbackContext) -> None:
        """A resumed run writes later lines again, and one that only computes steps again (``--replay``) none. Raises ``MtError`` where no
        texts will come."""
        if not context.evaluates:
            raise MtError(
                "callback predictions needs held-out rows, and this run has none; set --data.eval, or leave it out"
            )
        if context.output is None:
            if context.step == 0:
                raise MtError("callback predictions needs a run folder, and this run writes no files (output none)")
            return
        if _is_first(context):
            self._lines = StepLines(context.output / FILE)
            self._lines.cut_back(context.step)
            self._started = context.step

    def on_predict_end(self, context: CallbackContext) -> None:
        """Write the lines of one evaluation; on rank 0, which has the texts."""
        if self._lines is not None and context.predictions:
            if context.step == self._started:  # an evaluation that was cut short, or whose checkpoint was
                self._lines.cut_back(context.step - 1)
            self._lines.append({**each, **scores(each)} for each in context.predictions)

    def on_run_end(self, context: CallbackContext) -> None:
        """Write what could not be written so far."""
        if self._lines is not None:
            self._lines.close()

    def on_exception(self, context: CallbackContext) -> None:
        """Close the file."""
        self.on_run_end(context)


def predictions_files(config: PredictionsConfig) -> tuple[str, ...]:
    """Return what it writes into a run's folder."""
    return (FILE,)


def predictions_limits(config: PredictionsConfig) -> dict[str, str]:
    """Return what a run cannot have beside it."""
    return {
        "no-samples": "it scores the texts that each evaluation writes",
        "no-held-out": "it scores texts that are written of held-out rows",
    }


def scores(prediction: Mapping[str, Any]) -> dict[str, float | bool]:
    """Return whether text and expectation are the same, and how many words they share."""
    text, expected = str(prediction["text"]).strip(), str(prediction["expected"]).strip()
    return {"match": text == expected, "overlap": _word_f1(text.split(), expected.split())}


def _word_f1(found: list[str], wanted: list[str]) -> float:
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted))


def _is_first(context: CallbackContext) -> bool:
    return context.weights is None or context.weights.rank == 0
