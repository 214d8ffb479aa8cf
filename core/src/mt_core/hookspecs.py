"""The hooks: what a plugin may offer. Each is called once, at start-up, without arguments, and returns a list.

Mark an implementation with ``mt_core.hookimpl``. What runs is chosen by name in the run's config; a plugin that is
installed but not named by a run cannot change that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pluggy

from mt_core.components import (
    AdapterComponent,
    Component,
    ModelFamily,
    ModelSizes,
    ObjectiveComponent,
    OptimizerComponent,
)
from mt_core.kinds import Kind

PROJECT = "mt"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Mark a function of a plugin as the implementation of the hook with its name."""


@hookspec
def mt_model_configs() -> list[ModelFamily | ModelSizes]:  # type: ignore[empty-body]
    """Offer model families (config class and named sizes as data), or sizes of another plugin's family. They have no ``build``."""


@hookspec
def mt_train_models() -> list[Component]:  # type: ignore[empty-body]
    """Offer trainable models, under the family's name. ``build(config)`` returns a ``TrainModel`` in fp32."""


@hookspec
def mt_pipeline_layers() -> list[Component]:  # type: ignore[empty-body]
    """Offer a family's layers for a pipeline. ``build(config)`` returns a list of ``LayerSpec``."""


@hookspec
def mt_tokenizers() -> list[Component]:  # type: ignore[empty-body]
    """Offer tokenizers. ``build(config)`` returns a ``Tokenizer``."""


@hookspec
def mt_datasets() -> list[Component]:  # type: ignore[empty-body]
    """Offer sources of rows. ``build(config, *, split)`` returns a ``Dataset``, or ``None`` for a split it lacks."""


@hookspec
def mt_objectives() -> list[ObjectiveComponent]:  # type: ignore[empty-body]
    """Offer objectives. ``build(config, *, tokenizer, template)`` returns an ``Objective``."""


@hookspec
def mt_quantizers() -> list[Component]:  # type: ignore[empty-body]
    """Offer ways to store frozen weights in fewer bits. ``build(config)`` returns a ``Quantizer``, or ``None`` for none."""


@hookspec
def mt_adapters() -> list[AdapterComponent]:  # type: ignore[empty-body]
    """Offer adapters. ``build(config)`` returns an ``Adapter``."""


@hookspec
def mt_optimizers() -> list[OptimizerComponent]:  # type: ignore[empty-body]
    """Offer optimizers. ``build(config, groups)`` returns a ``torch.optim.Optimizer`` over named groups."""


@hookspec
def mt_schedules() -> list[Component]:  # type: ignore[empty-body]
    """Offer schedules. ``build(config, *, total_steps)`` returns ``(k) -> float``, the factor of the base rate."""


@hookspec
def mt_task_prints() -> list[Component]:  # type: ignore[empty-body]
    """Offer task prints (console lines). ``build(config)`` returns ``(records) -> str``, called on rank 0."""


@hookspec
def mt_callbacks() -> list[Component]:  # type: ignore[empty-body]
    """Offer callbacks. ``build(config)`` returns an object with some of the ``on_*`` methods."""


@hookspec
def mt_trackers() -> list[Component]:  # type: ignore[empty-body]
    """Offer trackers. ``build(config, *, run)`` returns a ``Tracker``; if it fails, a warning says so and the run goes on."""


@hookspec
def mt_kinds() -> list[Kind]:  # type: ignore[empty-body]
    """Offer new kinds of components. Other plugins then implement the hook that a kind names."""


@hookspec
def mt_doctor() -> Mapping[str, Mapping[str, Any]]:  # type: ignore[empty-body]
    """Offer sections of ``mt-plugins doctor``: title → facts; a fact named ``error`` is a problem. Only that command calls it."""
