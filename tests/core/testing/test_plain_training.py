"""Steps without an engine follow a schedule as the loop does."""

from __future__ import annotations

import torch

from mt_core.assemble.adapted import inject
from mt_core.plugins.resolve import resolve
from mt_core.testing import hermetic_host, tiny
from mt_core.testing.forward import rows_of
from mt_core.testing.layouts import small_run
from mt_core.testing.plain_training import PlainTraining
from mt_core.testing.weights import filled


def test_every_update_has_the_peak_rate_times_what_the_schedule_says() -> None:
    resolved = resolve(small_run(model={"name": tiny.NAME}, adapter="lora"), hermetic_host(tiny))
    model = filled(resolved.build("train_model", resolved.config.model.options))
    adapter = inject(resolved, model)
    for _, layer in model.named_modules():
        if hasattr(layer, "initialise"):
            layer.initialise(torch.Generator().manual_seed(0))
    training = PlainTraining(resolved, model, adapter, rate=0.5, steps=3, schedule=lambda k: (1.0, 0.25, 0.0)[k])
    rates = []
    for _ in range(3):
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        training.run([rows_of(torch.arange(24).view(2, 12), 12)])
        moved = any(not torch.equal(before[name], each) for name, each in model.named_parameters())
        rates.append((training.rate, training.optimizer.param_groups[0]["lr"], moved))
    assert rates == [(0.5, 0.5, True), (0.125, 0.125, True), (0.0, 0.0, False)]
