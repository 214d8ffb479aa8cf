"""Evaluations that score texts, on every layout, and metrics of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from mt_core import Component, PartChoice
from mt_core.evaluation import EvaluationComponent

from ..choices.build import build_constrained, build_mmlu, build_multiple_choice, build_set
from ..choices.config import MmluConfig, MultipleChoiceConfig, SetConfig, TruthfulConfig
from ..held_out import HeldOutConfig, build_held_out
from ..metrics.tokens import TokenAccuracy, TokenAccuracyConfig, TokenLoss
from ..perplexity import PerplexityConfig, build_perplexity

_SCORES: frozenset[Literal["scores", "texts"]] = frozenset({"scores"})
_SETS = {
    "arc": ("science at school", "https://allenai.org/data/arc"),
    "hellaswag": ("ways to go on with a text", "https://github.com/rowanz/hellaswag"),
    "winogrande": ("what a word in a sentence stands for", "https://winogrande.allenai.org"),
    "piqa": ("physical common sense", "https://yonatanbisk.com/piqa"),
    "openbookqa": ("elementary science", "https://allenai.org/data/open-book-qa"),
    "boolq": ("yes or no on a passage", "https://github.com/google-research-datasets/boolean-questions"),
    "reclor": ("logical reasoning of law school tests", "https://whyu.me/reclor"),
    "logiqa": ("logical reasoning of civil service tests", "https://github.com/lgw863/LogiQA-dataset"),
    "c3": ("Chinese texts and dialogues", "https://dataset.org/c3"),
    "ceval": ("52 subjects in Chinese", "https://cevalbenchmark.com"),
    "cmmlu": ("67 subjects in Chinese", "https://github.com/haonan-li/CMMLU"),
}
"""Set → what it asks about, and where it is from."""


def _parts_of_set(config: SetConfig, name: str) -> Mapping[str, PartChoice]:
    return config.choices_of(name)


def _parts_of_truthfulqa(config: TruthfulConfig) -> Mapping[str, PartChoice]:
    return config.choices_of("truthfulqa", {"task": config.task})


EVALUATIONS: tuple[EvaluationComponent, ...] = (
    EvaluationComponent(
        name="mmlu",
        config=MmluConfig,
        build=build_mmlu,
        parts=MmluConfig.choices_of,
        needs=_SCORES,
        summary="questions of 57 subjects, zero to five shots, by subject and category",
        source="https://arxiv.org/abs/2009.03300",
    ),
    EvaluationComponent(
        name="multiple-choice",
        config=MultipleChoiceConfig,
        build=build_multiple_choice,
        parts=MultipleChoiceConfig.choices_of,
        needs=_SCORES,
        summary="questions with choices, of any dataset",
        source="https://arxiv.org/abs/2005.14165",
    ),
    EvaluationComponent(
        name="constrained-choice",
        config=MultipleChoiceConfig,
        build=build_constrained,
        parts=MultipleChoiceConfig.choices_of,
        needs=frozenset({"scores", "texts"}),
        summary="questions with choices: the model generates the answer, restricted to a trie of the choices",
        source="https://arxiv.org/abs/2010.00904",
    ),
    *(
        EvaluationComponent(
            name=name,
            config=SetConfig,
            build=partial(build_set, name=name),
            parts=partial(_parts_of_set, name=name),
            needs=_SCORES,
            summary=f"multiple choice: {asks}",
            source=source,
        )
        for name, (asks, source) in _SETS.items()
    ),
    EvaluationComponent(
        name="truthfulqa",
        config=TruthfulConfig,
        build=partial(build_set, name="truthfulqa"),
        parts=_parts_of_truthfulqa,
        needs=_SCORES,
        summary="multiple choice: questions that many people answer wrongly, with one right answer or several",
        source="https://arxiv.org/abs/2109.07958",
    ),
    EvaluationComponent(
        name="perplexity",
        config=PerplexityConfig,
        build=build_perplexity,
        parts=PerplexityConfig.parts,
        needs=_SCORES,
        summary="documents in windows: perplexity by token, word and byte, bits per byte",
        source="https://arxiv.org/abs/2101.00027",
    ),
    EvaluationComponent(
        name="rows",
        config=HeldOutConfig,
        build=build_held_out,
        parts=HeldOutConfig.parts,
        needs=_SCORES,
        summary="held-out rows of several datasets by name: loss, perplexity, accuracy of tokens, metrics of your own",
        source="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
)

METRICS: tuple[Component, ...] = (
    Component(
        name="token-loss",
        build=lambda config: TokenLoss(),
        summary="loss and perplexity of held-out tokens",
        source="https://en.wikipedia.org/wiki/Perplexity",
    ),
    Component(
        name="token-accuracy",
        config=TokenAccuracyConfig,
        build=TokenAccuracy,
        summary="share of held-out tokens that the model ranks first, or among its first k",
        source="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
)
