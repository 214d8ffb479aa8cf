"""What any adapter must promise is the kit's class; the one piece of arithmetic that is this adapter's own is below."""

from __future__ import annotations

import torch
from torch import nn

from mt_conformance import BaseAdapterConformance
from mt_plugin_parallel import plugin
from mt_plugin_parallel.layer import ParallelLinear


class TestParallel(BaseAdapterConformance):
    plugin = plugin
    name = "parallel"
    options = {"width": 4}


def test_the_output_is_that_of_the_papers_network_beside_the_projection() -> None:
    """Equation 9 of the paper: h + s · f(x W_down) W_up, by torch's own modules."""
    base = nn.Linear(6, 5)
    layer = ParallelLinear(base, plugin.ParallelConfig(width=3, scale=2.0))
    network = nn.Sequential(nn.Linear(6, 3, bias=False), nn.ReLU(), nn.Linear(3, 5, bias=False))
    with torch.no_grad():
        for own, theirs in zip((layer.down, layer.up), network.parameters(), strict=True):
            own.copy_(theirs)
    x = torch.randn(2, 6)
    torch.testing.assert_close(layer(x), base(x) + 2.0 * network(x))
