"""A long row on one process: its peak falls by what the formula says. Minutes, so a soak."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DIM, HIDDEN, TOKENS, TILE = 64, 2048, 32_768, 1024
PROGRAM = """
import json, resource, sys
import torch
from mt_core.nn import GatedMLP
from mt_train.engine.tiling import run_mlp_in_tiles
torch.set_num_threads(1)
dim, hidden, tokens, tile = json.loads(sys.argv[1])
mlp = GatedMLP(dim, hidden)
if tile is not None:
    run_mlp_in_tiles(mlp, tile)
x = torch.randn(1, tokens, dim, requires_grad=True)
mlp(x[:, :8]).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
mlp(x).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
KEPT, MADE = 3, 2
"""Tensors of the hidden width at the peak of the backward, per token: gate, up and their product; the gradients of two of them."""


def peak(tile: int | None) -> int:
    """Bytes that the resident memory of a fresh process grows by in a forward and a backward."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([DIM, HIDDEN, TOKENS, tile])]
    return 1024 * int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.soak
def test_the_peak_of_a_long_row_falls_by_what_its_mlp_kept() -> None:
    whole, tiled = peak(None), peak(TILE)
    expected = 4 * (KEPT + MADE) * (TOKENS - TILE) * HIDDEN
    assert abs((whole - tiled) - expected) <= 0.2 * expected, (whole, tiled, expected)
