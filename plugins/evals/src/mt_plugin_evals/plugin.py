"""Entry point of the evals plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from mt_core import Component, Kind, hookimpl
from mt_core.evaluation import EvaluationComponent

from .offers import generated, scored


@hookimpl
def mt_kinds() -> list[Kind]:
    """Metrics, of which evaluations are made."""
    return [
        Kind(
            name="metric",
            hook="mt_metrics",
            slot="part",
            returns="mt_plugin_evals.metrics.base:Metric",
            template="mt_plugin_evals:templates/metric",
            conformance="mt_conformance:BaseMetricConformance",
            summary="computes figures that compare predictions with references",
        )
    ]


@hookimpl
def mt_evaluations() -> list[EvaluationComponent]:
    return [*scored.EVALUATIONS, *generated.EVALUATIONS]


@hookimpl
def mt_metrics() -> list[Component]:
    return [*scored.METRICS, *generated.METRICS]


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(
            name="sft-exam", summary="a low-rank pair on answers, asked MMLU after each pass; of 1B on a GPU of 12 GB"
        ),
    ]
