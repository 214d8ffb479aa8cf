"""Exact match and word F1 as the evaluation script of SQuAD 2.0 has them (https://rajpurkar.github.io/SQuAD-explorer/)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from mt_core import MtConfig, Row

from .totals import Scores, means

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SIGNATURE = "SQuAD 2.0: lower case, no ASCII punctuation, no articles, one space; best of the references"


def normalize(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and English articles, its words with one space between them."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_all(references: Sequence[str]) -> list[str]:
    """Return the references normalised, without those of which nothing is left, as ``The``; the empty text where none is left."""
    return [text for text in map(normalize, references) if text] or [""]


class ExactMatch:
    """Share of predictions that are one of their references, both normalised; see ``Metric``."""

    signature = _SIGNATURE

    def __init__(self, config: MtConfig) -> None:
        pass

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """See ``Metric``."""
        return {"exact_match": float(normalize(prediction) in normalize_all(references))}

    def total(self, scores: Scores) -> Mapping[str, float]:
        """See ``Metric``."""
        return means(scores)


class WordF1:
    """Words that a prediction and its best reference share; see ``Metric``. An empty text is right for an empty reference alone."""

    signature = _SIGNATURE

    def __init__(self, config: MtConfig) -> None:
        pass

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """See ``Metric``."""
        said = normalize(prediction).split()
        return {"word_f1": max(_word_f1(said, wanted.split()) for wanted in normalize_all(references))}

    def total(self, scores: Scores) -> Mapping[str, float]:
        """See ``Metric``."""
        return means(scores)


def _word_f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    if not said or not wanted:
        return float(said == wanted)
    common = (Counter(said) & Counter(wanted)).total()
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
