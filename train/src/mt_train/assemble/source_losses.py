"""Training losses of the rows of each dataset, where a run has several."""

from __future__ import annotations

from typing import Any

import numpy as np

from mt_train.assemble.held_out import numbers_by_source
from mt_train.data.samples import EncodedSamples
from mt_train.data.source_labels import Sources
from mt_train.engine.coupling import couples
from mt_train.engine.engine import Engine
from mt_train.engine.source_losses import SourceLosses
from mt_train.tracking.loss_units import counts_tokens


def sources_of(samples: EncodedSamples, objective: object) -> Sources | None:
    """Return the source of each sample; ``None`` where there is but one, or the loss is no mean over tokens, which have a source each."""
    if not counts_tokens(objective) or couples(objective):
        return None
    numbers = numbers_by_source(samples, "training", "loss")
    if not numbers:
        return None
    of_samples = np.zeros(len(samples), np.uint8)
    for number, own in enumerate(numbers.values()):
        of_samples[own] = number
    return Sources(tuple(numbers), of_samples)


def watch_sources(engine: Engine, loader: Any, every_steps: int) -> SourceLosses:
    """Have the engine report the loss of each source that the loader's rows have; of none where there is but one."""
    sources: Sources | None = getattr(loader, "sources", None)
    found = SourceLosses(sources.names if sources is not None else (), every_steps)
    if found.names:
        engine.module.loss_head.by_source = found
    return found
