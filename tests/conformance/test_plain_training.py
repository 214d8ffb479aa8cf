"""Steps without an engine do what the loop does: schedules, and adapters that take part in a step or do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mt_conformance import hermetic_host, tiny
from mt_conformance.adapter_model import single_process
from mt_conformance.forward import rows_of
from mt_conformance.layouts import small_run
from mt_conformance.plain_training import PlainTraining
from mt_conformance.weights import fill_weights
from mt_core import Adapter
from mt_core.nn import Batch
from mt_train.assemble.injection import inject, start
from mt_train.assemble.parts import Parts
from mt_train.engine.build import weight_names
from mt_train.plugins.resolve import resolve


def small_training(**options: Any) -> PlainTraining:
    """LoRA in the kit's tiny model."""
    parts = Parts.of(resolve(small_run(model={"name": tiny.NAME}, adapter="lora"), hermetic_host(tiny)))
    model = fill_weights(parts.model())
    names = weight_names(model)
    adapter = inject(parts, model)
    start(parts, model, adapter, names, process=single_process())
    return PlainTraining(parts, model, adapter, rate=0.5, steps=3, **options)


def batch() -> Batch:
    return rows_of(torch.arange(24).view(2, 12), 12)


def test_every_update_has_the_peak_rate_times_what_the_schedule_says() -> None:
    training = small_training(schedule=lambda k: (1.0, 0.25, 0.0)[k])
    model = training.model
    rates = []
    for _ in range(3):
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        training.run([batch()])
        moved = any(not torch.equal(before[name], each) for name, each in model.named_parameters())
        rates.append((training.rate, training.optimizer.param_groups[0]["lr"], moved))
    assert rates == [(0.5, 0.5, True), (0.125, 0.125, True), (0.0, 0.0, False)]


@pytest.mark.parametrize("wanted", [True, False])
def test_an_adapter_is_called_around_updates_where_it_wants_to_be(wanted: bool) -> None:
    called: list[str] = []

    class Watching(Adapter):
        steps = wanted  # type: ignore[assignment]
        after_backward = lambda self, context: called.append("backward")  # noqa: E731
        after_step = lambda self, context: called.append("step")  # noqa: E731

    training = small_training()
    training.adapter = Watching()
    training.run([batch()])
    assert called == ["backward", "step"] * wanted
