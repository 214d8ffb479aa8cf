"""BLEU, chrF and TER over a corpus, by ``sacrebleu`` (https://github.com/mjpost/sacrebleu)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from mt_core import MtConfig, Row, UsageError

from ..extras import package
from .totals import Scores, resampled_errors

_STATISTIC = "statistic_"


class CorpusConfig(MtConfig):
    """Options of figures over a corpus."""

    bootstrap: int = Field(0, ge=0, description="resamplings for the standard error, which is no closed form; 0: none")


class BleuConfig(CorpusConfig):
    """Options of BLEU."""

    tokenizer: Literal["13a", "zh", "char", "intl", "ja-mecab", "none"] = Field(
        "13a",
        description="13a: as WMT has it, for languages with spaces; zh: Chinese; char: each character; intl: by Unicode",
    )
    lowercase: bool = Field(False, description="compare in lower case")


class ChrfConfig(CorpusConfig):
    """Options of chrF."""

    words: int = Field(0, ge=0, le=6, description="longest word n-grams; 2 is chrF++")
    lowercase: bool = Field(False, description="compare in lower case")


class TerConfig(CorpusConfig):
    """Options of TER."""

    normalized: bool = Field(False, description="tokenize punctuation apart")
    no_punct: bool = Field(False, description="leave punctuation out")
    asian_support: bool = Field(False, description="with normalized: characters of Asian scripts are words")
    case_sensitive: bool = Field(False, description="tell capitals from small letters")


class CorpusMetric:
    """A figure of sacrebleu: rows give statistics, and their own score; the total is of all statistics, and no mean of scores."""

    def __init__(self, name: str, metric: Any, sentence: Any, bootstrap: int) -> None:
        self._name, self._metric, self._sentence, self._bootstrap = name, metric, sentence, bootstrap
        self._reference_counts: set[int] = set()

    @property
    def signature(self) -> str:
        """sacrebleu's own, with the number of references of the rows so far."""
        self._metric.num_refs = next(iter(self._reference_counts)) if len(self._reference_counts) == 1 else -1
        return str(self._metric.get_signature())

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """See ``Metric``."""
        self._reference_counts.add(len(references))
        (statistics,) = self._metric._extract_corpus_statistics([prediction], [[each] for each in references])
        own = float(self._sentence._aggregate_and_compute([statistics]).score)
        return {self._name: own} | {f"{_STATISTIC}{at}": float(value) for at, value in enumerate(statistics)}

    def total(self, scores: Scores) -> Mapping[str, float]:
        """See ``Metric``."""
        return {**self._corpus(scores), **resampled_errors(self._corpus, scores, times=self._bootstrap)}

    def _corpus(self, scores: Scores) -> dict[str, float]:
        names = [name for name in scores[0] if name.startswith(_STATISTIC)]
        statistics = [[_number(row[name]) for name in names] for row in scores]
        return {self._name: float(self._metric._aggregate_and_compute(statistics).score)}


def _number(value: float) -> float | int:
    """Counts are whole again, for libraries that divide by them or index with them."""
    return int(value) if value.is_integer() else value


def build_bleu(config: BleuConfig) -> CorpusMetric:
    """BLEU (https://aclanthology.org/P02-1040), 0 to 100; a row's own counts the n-grams that it is long enough for.

    Raises ``UsageError`` for a tokenizer whose own libraries are missing.
    """
    metrics = package("sacrebleu.metrics", extra="metrics", user="the metric bleu")
    options: dict[str, Any] = {"tokenize": config.tokenizer, "lowercase": config.lowercase, "force": True}
    try:
        sentence = metrics.BLEU(**options, effective_order=True)
    except RuntimeError as error:
        if config.tokenizer != "ja-mecab":
            raise
        raise UsageError(
            "the tokenizer ja-mecab of the metric bleu needs MeCab with its dictionary, which cannot be imported here; install them with"
            " pip install 'sacrebleu[ja]', or take the tokenizer char"
        ) from error
    return CorpusMetric("bleu", metrics.BLEU(**options), sentence, config.bootstrap)


def build_chrf(config: ChrfConfig) -> CorpusMetric:
    """chrF (https://aclanthology.org/W15-3049), 0 to 100."""
    metrics = package("sacrebleu.metrics", extra="metrics", user="the metric chrf")
    metric = metrics.CHRF(word_order=config.words, lowercase=config.lowercase)
    return CorpusMetric("chrf", metric, metric, config.bootstrap)


def build_ter(config: TerConfig) -> CorpusMetric:
    """TER (https://aclanthology.org/2006.amta-papers.25): edits for each 100 words of a reference, fewer are better."""
    metrics = package("sacrebleu.metrics", extra="metrics", user="the metric ter")
    options = config.model_dump(exclude={"bootstrap"})
    metric = metrics.TER(**options)
    return CorpusMetric("ter", metric, metric, config.bootstrap)
