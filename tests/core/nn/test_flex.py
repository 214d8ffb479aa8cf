"""FlexAttention in the place of a GPU's other kernels: traced as a GPU traces it, and computed on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torchs

from mt_core.nn import BlockContext, SdpaAttention, flex
from mt_core.nn.blocks import Form

FORMS: list[tuple[dict[str, Any], bool]] = [
    ({"softcap": 30.0}, True),
    ({"softcap": 2.0, "window": 10}, False),
    ({"softcap": 5.0}, False),
    ({}, True),
]
"""Options of attention, and whether there are sinks. Several soft-caps, since the second is where a compiler begins to generalise."""


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel compiled as ever, by a backend that a CPU can run backward, and without torch's refusal of it."""
    torch._dynamo.reset()
    kernel = torch.compile(torchs.flex_attention, dynamic=True, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(flex, "_kernel", lambda: kernel)
    monkeypatch.setattr(torchs, "_validate_device", lambda *tensors: None)
    plain = torchs.create_block_mask
    monkeypatch.setattr(torchs, "create_block_mask", lambda *given, _compile, **named: plain(*given, **named))
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("traced")
def test_soft_caps_and_sinks_equal_attention_on_a_cpu_and_no_form_breaks_the_graph() -> None:
    """Value and gradients in fp32, over packed rows. To 2e-5: sums of other orders."""
    lengths = ((20, 12), (32,))
    ids = torch.tensor([[number for number, size in enumerate(row) for _ in range(size)] for row in lengths])
    context = BlockContext(
        positions_BT=torch.arange(32).repeat(2, 1),
        document_ids_BT=ids,
        attention=SdpaAttention(),
        document_lengths=lengths,
    )
    for options, has_sinks in FORMS:
        torch.manual_seed(0)
        inputs = [torch.randn(2, 32, heads, 16, requires_grad=True) for heads in (4, 2, 2)]
        sinks = torch.randn(4, requires_grad=True) if has_sinks else None
        wanted = inputs if sinks is None else [*inputs, sinks]
        outputs = (
            context.attention(*inputs, context, **options, **({} if sinks is None else {"sinks_N": sinks})),
            flex.flexible_attention(*inputs, lengths, Form(**options, sinks_N=sinks), {}),
        )
        for ours, theirs in zip(*map(partial(values, wanted), outputs), strict=True):
            torch.testing.assert_close(theirs, ours, rtol=2e-5, atol=2e-5)


def values(wanted: list[Tensor], out: Tensor) -> list[Tensor]:
    """The output, and the gradient of each tensor."""
    return [out, *torch.autograd.grad(out, wanted, torch.arange(out.numel()).cos().view(out.shape))]
