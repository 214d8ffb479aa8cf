"""Memory of encoders of media on paper: their parts as layers, and what they keep for their backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from mt_core.groups import MEDIA
from mt_core.media import Processor
from mt_core.nn import Layer, MediaBatch, TrainModel
from mt_train.data.samples import EncodedSamples
from mt_train.planning.activations import count_kept


def media_layers(model: TrainModel) -> list[Layer]:
    """Return encoder and projector of each encoder of a model; none where it has none."""
    return [
        Layer(f"{MEDIA}.{name}.{part}", module)
        for name, projected in (model.media or nn.ModuleDict()).items()
        for part, module in projected.named_children()
    ]


def fullest_media(
    samples: EncodedSamples, *, rows: int, row_tokens: int, packing: bool, most_features: int | None = None
) -> dict[str, int]:
    """Return the features of each encoder in so many rows like the one with most, which packing fills with samples like that, up to its
    ``most_features``."""
    counts = samples.media_features
    if not counts.any():
        return {}
    number = int(counts.argmax())
    found: Counter[str] = Counter()
    for span in samples.media_of(number):
        found[span.item.encoder] += span.features
    of_row = max(1, row_tokens // int(samples.lengths[number])) if packing else 1
    if packing and most_features is not None:
        of_row = max(1, min(of_row, most_features // int(counts[number])))
    times = rows * of_row
    return {name: times * count for name, count in found.items()}


def media_activations(
    model: TrainModel, processors: Mapping[str, Processor], features: Mapping[str, int], dtype: torch.dtype
) -> int | None:
    """Return the bytes that encoders and projectors keep of so many features each, as many times what they keep of a dummy's.

    ``None`` for an encoder whose forward looks at values, which tensors without memory do not have.
    """
    kept = 0.0
    for name, module in (model.media or nn.ModuleDict()).items():
        measured, arrays = processors[name].dummy()
        nothing = torch.empty(0, dtype=torch.int64)
        inputs = {key: torch.from_numpy(array) for key, array in arrays.items()}
        batch = MediaBatch((), (measured.features,), (), (measured.grid,), nothing, nothing, inputs)
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                weights = {
                    key: torch.empty(each.shape, dtype=dtype, requires_grad=each.requires_grad)
                    for key, each in module.named_parameters()
                }
                with count_kept(list(weights.values())) as sizes:
                    functional_call(module, weights, (batch,))
        except (RuntimeError, NotImplementedError):
            return None
        kept += sum(sizes.values()) * max(1.0, features.get(name, 0) / measured.features)
    return round(kept)
