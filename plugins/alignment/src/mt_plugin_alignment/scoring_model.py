"""The reward model that ``mt-score`` asks."""

from __future__ import annotations

import argparse

from mt_train import load_run, load_weights

from .scoring import Scorer


def load_scorer(arguments: argparse.Namespace) -> Scorer:
    """The model of a run, or of a folder that ``mt-export`` wrote of one."""
    if arguments.run is not None:
        step = arguments.checkpoint
        return Scorer(load_run(arguments.run, checkpoint=int(step) if step.isdigit() else step))
    return Scorer(load_weights(arguments.model, arguments.weights, objective="reward"))
