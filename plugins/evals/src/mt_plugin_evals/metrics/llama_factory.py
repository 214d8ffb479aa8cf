"""Figures of LLaMA-Factory's ``predict_with_generate`` under a name of their own: others do not have the same formulas.

ROUGE is that of ``rouge_chinese`` over words of jieba, BLEU-4 the mean of NLTK's over single characters, smoothed by its third method
(``src/llamafactory/train/sft/metric.py``); all from 0 to 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from mt_core import DataError, MtConfig, Row

from ..extras import package
from .totals import Scores, means

_USER = "the metric llama-factory"


class LlamaFactory:
    """ROUGE-1, -2, -L and BLEU-4 as LLaMA-Factory counts them; see ``Metric``."""

    def __init__(self, config: MtConfig) -> None:
        self._jieba = package("jieba", extra="chinese", user=_USER)
        self._rouge = package("rouge_chinese", extra="chinese", user=_USER).Rouge()
        self._bleu = package("nltk.translate.bleu_score", extra="chinese", user=_USER)
        self._jieba.setLogLevel("ERROR")
        versions = ", ".join(f"{name} {version(name)}" for name in ("rouge-chinese", "jieba", "nltk"))
        self.signature = f"LLaMA-Factory's sft/metric.py with {versions}"

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """See ``Metric``. Raises ``DataError`` where there are several references: LLaMA-Factory has one."""
        if len(references) != 1:
            raise DataError(
                f"{row['id']}: {_USER} takes one reference, and the row has {len(references)}; leave the metric out"
            )
        (reference,) = references
        smoothed = self._bleu.SmoothingFunction().method3
        bleu = self._bleu.sentence_bleu([list(reference)], list(prediction), smoothing_function=smoothed)
        return {**self._rouges(prediction, reference), "bleu_4": round(bleu * 100, 4)}

    def _rouges(self, prediction: str, reference: str) -> dict[str, float]:
        said, wanted = (" ".join(self._jieba.cut(text)) for text in (prediction, reference))
        kinds = ("rouge-1", "rouge-2", "rouge-l")
        if not said.split() or not wanted.split():
            return {kind.replace("-", "_"): 0.0 for kind in kinds}
        (found,) = self._rouge.get_scores(said, wanted)
        return {kind.replace("-", "_"): round(found[kind]["f"] * 100, 4) for kind in kinds}

    def total(self, scores: Scores) -> Mapping[str, float]:
        """See ``Metric``."""
        return means(scores)
