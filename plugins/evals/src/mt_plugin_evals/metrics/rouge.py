"""ROUGE (https://aclanthology.org/W04-1013) by ``rouge_score``, whose own tokenizer reads a to z and digits only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from mt_core import DataError, MtConfig, Row

from ..extras import package
from .totals import Scores, means

_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class RougeConfig(MtConfig):
    """Tokens that are compared."""

    tokenizer: Literal["words", "characters", "jieba"] = Field(
        "words",
        description="words: English words and digits (a-z0-9); characters: for Chinese and others; jieba: Chinese words (extra chinese)",
    )
    stemmer: bool = Field(False, description="compare stems of English words (Porter); with words only")


class Characters:
    """Each character but spaces is a token."""

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        return [character for character in text if not character.isspace()]


class ChineseWords:
    """Words as jieba cuts them."""

    def __init__(self) -> None:
        self._jieba = package("jieba", extra="chinese", user="the tokenizer jieba")
        self._jieba.setLogLevel("ERROR")

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        return [word for word in self._jieba.cut(text) if not word.isspace()]


class Rouge:
    """F1 of ROUGE-1, -2, -L and -Lsum (sentences by line); the best reference of each; see ``Metric``."""

    def __init__(self, config: RougeConfig) -> None:
        from importlib.metadata import version  # here: importing it takes a while, and most runs need none

        scorer = package("rouge_score.rouge_scorer", extra="metrics", user="the metric rouge")
        tokenizers = package("rouge_score.tokenizers", extra="metrics", user="the metric rouge")
        made: dict[str, Any] = {
            "words": lambda: tokenizers.DefaultTokenizer(config.stemmer),
            "characters": Characters,
            "jieba": ChineseWords,
        }
        self._tokenizer: Any = made[config.tokenizer]()
        self._scorer = scorer.RougeScorer(list(_KINDS), tokenizer=self._tokenizer)
        stems = ", stems" if config.stemmer and config.tokenizer == "words" else ""
        self.signature = f"rouge_score {version('rouge-score')}, {config.tokenizer}{stems}, F1, mean over rows"

    def score(self, prediction: str, references: Sequence[str], row: Row) -> Mapping[str, float]:
        """See ``Metric``. Raises ``DataError`` for a reference in which the tokenizer finds nothing: identical texts would have 0."""
        for reference in references:
            if reference.strip() and not self._tokenizer.tokenize(reference):
                raise DataError(
                    f"{row['id']}: ROUGE over English words finds none in the reference {reference[:40]!r}, so that even the same text"
                    " would get 0; take other tokens, as in metrics: [{name: rouge, tokenizer: characters}]"
                )
        found = self._scorer.score_multi(list(references), prediction)
        return {kind.lower(): float(found[kind].fmeasure) for kind in _KINDS}

    def total(self, scores: Scores) -> Mapping[str, float]:
        """See ``Metric``."""
        return means(scores)
