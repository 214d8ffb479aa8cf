"""A model to generate with: from a run's checkpoint, or from a folder of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from mt_core.assemble.data import build_tokenizer
from mt_core.assemble.model import check_checkpoint, checkpoint_weights, pretrained
from mt_core.checkpoint.store import verify
from mt_core.engine.build import fill_model
from mt_core.engine.processes import Process
from mt_core.nn import TrainModel
from mt_core.plugins.resolve import Resolved
from mt_core.protocols import Tokenizer


@dataclass(frozen=True)
class Generator:
    """A model with its tokenizer, ready to run."""

    model: TrainModel
    tokenizer: Tokenizer


def load(resolved: Resolved, checkpoint: Path | None, say: Callable[[str], None]) -> Generator:
    """Build the model and fill it by name; no process group and no DeepSpeed are needed."""
    config = resolved.config
    tokenizer = build_tokenizer(resolved)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        model: TrainModel = resolved.build("train_model", config.model.options)
    resolved.build("adapter", config.adapter.options).inject(model)
    names = [name for name, _ in model.named_parameters()]
    if checkpoint is not None:
        verify(checkpoint)
        source = checkpoint_weights(checkpoint)
        check_checkpoint(source, names)
    else:
        source = pretrained(resolved, config.model, names, say)
    fill_model(model, source, seed=config.train.seed, process=Process(0, 1, 0, device))
    return Generator(model.eval(), tokenizer)
