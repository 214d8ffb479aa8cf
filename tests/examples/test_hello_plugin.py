"""The example model keeps the promises that the core builds on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_core.nn import Batch, KVCache

SOURCE = Path(__file__).parents[2] / "examples/hello_plugin/src"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SOURCE))
    from mt_plugin_hello.config import VARIANTS, GatedConvConfig
    from mt_plugin_hello.model import GatedConv

    torch.manual_seed(0)
    built = GatedConv(GatedConvConfig(**VARIANTS["tiny"]))
    for name, parameter in built.named_parameters():
        if parameter.dim() >= 2 or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    yield built
    for name in [name for name in sys.modules if name.startswith("mt_plugin_hello")]:
        del sys.modules[name]


def row(lengths: list[int]) -> Batch:
    total = sum(lengths)
    ids = torch.randint(0, 256, (1, total), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    return Batch(ids, ids, positions, documents).indexed()


def changed(batch: Batch, start: int, end: int) -> Batch:
    ids = batch.input_ids.clone()
    ids[:, start:end] = (ids[:, start:end] + 7) % 256
    return Batch(ids, batch.labels, batch.positions, batch.document_ids).indexed()


def test_later_tokens_never_change_earlier_outputs(model: Any) -> None:
    batch = row([50])
    assert torch.equal(model(batch)[:, :30], model(changed(batch, 30, 50))[:, :30])


def test_documents_in_one_row_never_see_each_other(model: Any) -> None:
    batch = row([11, 20, 9])
    outputs, other = model(batch), model(changed(batch, 11, 31))
    assert torch.equal(outputs[:, :11], other[:, :11])
    assert torch.equal(outputs[:, 31:], other[:, 31:])
    assert not torch.equal(outputs[:, 11:31], other[:, 11:31])


def test_a_cache_gives_what_the_whole_forward_gives(model: Any) -> None:
    batch, cache, pieces = row([30]), KVCache(), []
    for start, end in [(0, 2), (2, 3), (3, 15), (15, 30)]:
        cut = [x[:, start:end] for x in (batch.input_ids, batch.labels, batch.positions, batch.document_ids)]
        pieces.append(model(Batch(*cut), cache))
    torch.testing.assert_close(torch.cat(pieces, 1), model(batch), atol=1e-5, rtol=1e-5)


def test_every_parameter_gets_a_gradient(model: Any) -> None:
    model.head(model(row([20, 20]))).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
