"""Kinds that mt-train brings: what a run may name beside the kinds of the core, and the trainer itself takes."""

from __future__ import annotations

from mt_core.evaluation import EvaluationComponent
from mt_core.kinds import Kind
from mt_core.media import EncoderComponent, ProjectorComponent

KINDS = (
    Kind(
        name="evaluation",
        hook="mt_evaluations",
        offers=EvaluationComponent,
        slot="many",
        key="evaluations",
        given=("split",),
        returns="mt_core.evaluation:Evaluation",
        template="mt_train:templates/evaluation",
        conformance="mt_conformance:BaseEvaluationConformance",
        summary="asks a model questions during training or afterwards, and computes figures from the answers",
    ),
    Kind(
        name="encoder",
        hook="mt_encoders",
        offers=EncoderComponent,
        slot="many",
        key="encoders",
        returns="mt_core.nn:Encoder",
        template="mt_train:templates/encoder",
        conformance="mt_conformance:BaseEncoderConformance",
        summary="computes features of images, sequences or sounds, which take the place of tokens in rows",
    ),
    Kind(
        name="projector",
        hook="mt_projectors",
        offers=ProjectorComponent,
        slot="part",
        given=("source", "target"),
        returns="mt_core.nn:Projector",
        template="mt_train:templates/projector",
        conformance="mt_conformance:BaseProjectorConformance",
        summary="turns features of an encoder into hidden states of the model",
    ),
    Kind(
        name="backend",
        hook="mt_backends",
        slot="part",
        returns="mt_train:Backend",
        summary="generates the texts of mt-generate on an inference server",
    ),
    Kind(
        name="recipe",
        hook="mt_recipes",
        slot="part",
        returns="mt_core:MtConfig",
        summary="the config of a whole run, for mt-train --recipe NAME; all other keys override it",
    ),
)
KEYS = frozenset(kind.key for kind in KINDS)
"""Keys of a run that count without a component that takes them."""
