"""What the core builds on, promised by this model: the kit's class has the checks that hold for any family."""

from __future__ import annotations

import pytest
import torch

from mt_conformance import BaseModelConformance
from mt_plugin_hello import plugin
from mt_plugin_hello.model import windows


class TestGatedConv(BaseModelConformance):
    plugin = plugin
    name = "gated-conv"
    options = {"dim": 32, "n_layers": 2}


@pytest.mark.parametrize("taps", [2, 3, 5])
def test_a_linear_map_of_windows_is_torchs_causal_convolution(taps: int) -> None:
    """The one piece of arithmetic that is this model's own, against code that somebody else wrote."""
    x_BTD, kernel_EDK = torch.randn(1, 9, 4), torch.randn(6, 4, taps)
    seen_BSD = torch.nn.functional.pad(x_BTD, (0, 0, taps - 1, 0))
    ours = windows(seen_BSD, torch.arange(9)[None]) @ kernel_EDK.transpose(1, 2).flatten(1).T
    theirs = torch.conv1d(seen_BSD.transpose(1, 2), kernel_EDK).transpose(1, 2)
    torch.testing.assert_close(ours, theirs)
