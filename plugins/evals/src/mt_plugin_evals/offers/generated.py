"""Evaluations that let the model write, metrics of what it wrote, and lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mt_core.evaluation import EvaluationComponent

from ..generated.config import (
    AnswersConfig,
    Gsm8kConfig,
    PassAtKConfig,
    answers_parts,
    gsm8k_parts,
    pass_at_k_parts,
)
from ..harness.config import HarnessConfig
from .metrics import METRICS as METRICS

if TYPE_CHECKING:
    from mt_core.evaluation import Evaluation


def _answers(config: AnswersConfig, *, split: str, parts: Sequence[Any]) -> Evaluation:
    from ..generated.answers import Answers

    rows, *metrics = parts
    return Answers(config, rows, dict(zip(config.metric_names, metrics, strict=True)))


def _gsm8k(config: Gsm8kConfig, *, split: str, parts: Sequence[Any]) -> Evaluation:
    from ..generated.gsm8k import Gsm8k

    return Gsm8k(config, *parts)


def _pass_at_k(config: PassAtKConfig, *, split: str, parts: Sequence[Any]) -> Evaluation:
    from ..generated.pass_at_k import PassAtK

    return PassAtK(config, *parts)


def _harness(config: HarnessConfig, *, split: str, parts: Any = ()) -> Evaluation:
    from ..harness.evaluation import Harness

    return Harness(config)


_TEXTS: frozenset[Any] = frozenset({"texts"})

EVALUATIONS: tuple[EvaluationComponent, ...] = (
    EvaluationComponent(
        name="answers",
        config=AnswersConfig,
        build=_answers,
        parts=answers_parts,
        needs=_TEXTS,
        summary="generated answers to the rows of a dataset, scored by any metrics",
    ),
    EvaluationComponent(
        name="gsm8k",
        config=Gsm8kConfig,
        build=_gsm8k,
        parts=gsm8k_parts,
        needs=_TEXTS,
        summary="grade-school sums as lm-evaluation-harness asks them, and numbers compared as decimals",
        source="https://arxiv.org/abs/2110.14168",
    ),
    EvaluationComponent(
        name="pass-at-k",
        config=PassAtKConfig,
        build=_pass_at_k,
        parts=pass_at_k_parts,
        needs=_TEXTS,
        summary="generated programs, executed without files and network; must be allowed by name",
        source="https://arxiv.org/abs/2107.03374",
    ),
    EvaluationComponent(
        name="harness",
        config=HarnessConfig,
        build=_harness,
        needs=frozenset({"scores"}),
        summary="tasks of lm-evaluation-harness on the model in memory; tasks that generate need a layout that can",
        source="https://github.com/EleutherAI/lm-evaluation-harness",
    ),
)
