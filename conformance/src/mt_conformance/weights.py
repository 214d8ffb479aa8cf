"""A model with values, as the core fills it."""

from __future__ import annotations

import torch

from mt_conformance import trainer
from mt_core.nn import TrainModel


def fill_weights(model: TrainModel, *, seed: int = 0, wide: bool = False) -> TrainModel:
    """Give the model its own initial values of this seed; ``wide`` moves all of them, so that whatever is left out or mixed up shows."""
    trainer.fill_model(model, {}, seed=seed, process=trainer.Process(0, 1, 0, torch.device("cpu")))
    if wide:
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model
