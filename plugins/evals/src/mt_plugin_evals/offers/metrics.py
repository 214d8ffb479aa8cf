"""Metrics of what models write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mt_core import ANY, Component, MtConfig

from ..metrics.choice_letter import ChoiceLetterConfig
from ..metrics.classification import ClassificationConfig
from ..metrics.corpus import BleuConfig, ChrfConfig, TerConfig
from ..metrics.rouge import RougeConfig

if TYPE_CHECKING:
    from ..metrics.base import Metric


def _exact_match(config: MtConfig) -> Metric:
    from ..metrics.squad import ExactMatch

    return ExactMatch(config)


def _word_f1(config: MtConfig) -> Metric:
    from ..metrics.squad import WordF1

    return WordF1(config)


def _number(config: MtConfig) -> Metric:
    from ..metrics.number import Number

    return Number(config)


def _rouge(config: RougeConfig) -> Metric:
    from ..metrics.rouge import Rouge

    return Rouge(config)


def _bleu(config: BleuConfig) -> Metric:
    from ..metrics.corpus import build_bleu

    return build_bleu(config)


def _chrf(config: ChrfConfig) -> Metric:
    from ..metrics.corpus import build_chrf

    return build_chrf(config)


def _ter(config: TerConfig) -> Metric:
    from ..metrics.corpus import build_ter

    return build_ter(config)


def _classification(config: ClassificationConfig) -> Metric:
    from ..metrics.classification import Classification

    return Classification(config)


def _choice_letter(config: ChoiceLetterConfig) -> Metric:
    from ..metrics.choice_letter import ChoiceLetter

    return ChoiceLetter(config)


def _llama_factory(config: MtConfig) -> Metric:
    from ..metrics.llama_factory import LlamaFactory

    return LlamaFactory(config)


def _metric(name: str, build: Any, summary: str, source: str, config: type[MtConfig] = MtConfig) -> Component:
    return Component(name=name, build=build, config=config, summary=summary, source=source, layouts=ANY)


METRICS: tuple[Component, ...] = (
    _metric(
        "exact-match",
        _exact_match,
        "share of answers equal to a reference, both normalised as SQuAD does",
        "https://arxiv.org/abs/1806.03822",
    ),
    _metric(
        "word-f1", _word_f1, "words shared with the best reference, SQuAD's F1", "https://arxiv.org/abs/1806.03822"
    ),
    _metric(
        "number",
        _number,
        "share of right numbers at the end of an answer, as in GSM8K",
        "https://arxiv.org/abs/2110.14168",
    ),
    _metric(
        "rouge",
        _rouge,
        "ROUGE-1, -2, -L, -Lsum over words or characters",
        "https://aclanthology.org/W04-1013",
        RougeConfig,
    ),
    _metric("bleu", _bleu, "BLEU over all rows, by sacrebleu", "https://aclanthology.org/W18-6319", BleuConfig),
    _metric("chrf", _chrf, "chrF over all rows, by sacrebleu", "https://aclanthology.org/W15-3049", ChrfConfig),
    _metric("ter", _ter, "TER over all rows, by sacrebleu", "https://aclanthology.org/2006.amta-papers.25", TerConfig),
    _metric(
        "classification",
        _classification,
        "accuracy, precision, recall, F1 and MCC of the labels that answers name",
        "https://scikit-learn.org",
        ClassificationConfig,
    ),
    _metric(
        "choice-letter",
        _choice_letter,
        "share of right letters after 'Answer:', and of answers without one",
        "https://github.com/openai/simple-evals",
        ChoiceLetterConfig,
    ),
    _metric(
        "llama-factory",
        _llama_factory,
        "ROUGE and BLEU-4 as LLaMA-Factory counts them, which no other does",
        "https://github.com/hiyouga/LLaMA-Factory",
    ),
)
