"""A small model in training: which parameters its layers have, and which of them move."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch.nn import functional

from mt_core import Adapter
from mt_core.adapters import adapted_layers
from mt_core.nn import Batch, TrainModel


def batch() -> Batch:
    """Two rows of twelve random tokens."""
    ids = torch.randint(31, (2, 13), generator=torch.Generator().manual_seed(5))
    positions = torch.arange(12).expand(2, 12)
    return Batch(
        input_ids=ids[:, :-1], labels=ids[:, 1:], positions=positions, document_ids=torch.zeros_like(positions)
    )


def parameters_of(model: TrainModel) -> dict[str, set[int]]:
    """The adapters' parameters by their name in a layer: as many identities as there are different ones."""
    found = defaultdict(set)
    for _, layer in adapted_layers(model):
        for name, parameter in layer.own_parameters():
            found[name].add(id(parameter))
    return dict(found)


def every_trained_parameter_moves(model: TrainModel, adapter: Adapter, *, steps: int = 3) -> list[float]:
    """Adam without decay: what has no gradient stays to the bit. Returns the losses."""
    trained = set(adapter.trainable_parameters(model))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    rows, losses = batch(), []
    for _ in range(steps):
        loss = functional.cross_entropy(model.head(model(rows)).flatten(0, 1), rows.labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    moved = {name for name, each in model.named_parameters() if not torch.equal(each, before[name])}
    assert moved == trained
    assert losses[-1] < losses[0]
    return losses
