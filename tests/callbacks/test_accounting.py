"""Tokens, operations and memory of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mt_core.nn import Encoder, Projector, SdpaAttention, StoredLinear, TokenObjective, TrainModel
from mt_core.rows import MediaItem, MediaSpan, Sample
from mt_plugin_callbacks import accounting
from mt_train import load_run, train
from mt_train.engine.media_inputs import MediaInputs, ProjectedEncoder
from mt_train.tracking.metrics import MetricsFile


def last_record(run: Path) -> dict[str, Any]:
    return MetricsFile(run / "metrics.jsonl").read()[-1]


def test_operations_are_those_that_torch_counts(runs: Any) -> None:
    """Counted with torch's own counter over forward and backward of one row of the same length."""
    run = runs.train("run", steps=3, model={"dropout": 0.0}, callbacks={"flops": {"peak_teraflops": 2.0}})
    record = last_record(run)
    assert record["tokens_seen"] == 3 * 2 * 64
    model = load_run(run).model.train()
    model.attention = SdpaAttention("math")  # of which the counter knows every product
    batch = TokenObjective().collate([[Sample(list(range(64)), [True] * 64, "row")]], length=64).with_index()
    with FlopCounterMode(display=False) as counter:
        TokenObjective().loss(model(batch), model.head, batch).loss_sum.backward()
    assert record["petaflop"] * 1e15 == pytest.approx(counter.get_total_flops() * 6, rel=0.03)
    assert record["mfu"] == pytest.approx(record["teraflops"] / 2.0)


def token_flop(model: TrainModel, length: int) -> float:
    return accounting.token_flop(model, length, accounting.computed_shares(model))


def counted_products(model: TrainModel, trained: str) -> tuple[int, int]:
    """Operations of the products with weights, and of attention's, by torch's own counter; one row of 64 tokens."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    batch = TokenObjective().collate([[Sample(list(range(64)), [True] * 64, "row")]], length=64).with_index()
    with FlopCounterMode(display=False) as counter:
        TokenObjective().loss(model(batch), model.head, batch).loss_sum.backward()
    found = counter.get_flop_counts()["Global"]
    return found[torch.ops.aten.mm], found[torch.ops.aten.bmm]


@pytest.mark.parametrize("trained", ["layers.1", "norm"])
def test_gradients_that_nobody_computes_are_no_operations(trained: str, needs: Callable[[str], None]) -> None:
    """The last block alone, and norms alone, which are as small as adapters and as deep."""
    needs("mt-plugin-llama")
    from mt_plugin_llama.config import LlamaConfig
    from mt_plugin_llama.model import Llama

    model = Llama(LlamaConfig(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=160, vocab_size=300, max_seq_len=64))
    model.attention = SdpaAttention("math")
    _, whole_attention = counted_products(model, "")
    assert token_flop(model, 64) == pytest.approx(model.flops_per_token(64))
    products, attention = counted_products(model, trained)
    assert 64 * token_flop(model, 1) == pytest.approx(products, rel=0.02)
    attended = token_flop(model, 64) - token_flop(model, 1)
    share = attended / (model.flops_per_token(64) - model.flops_per_token(1))
    assert share == pytest.approx(attention / whole_attention)


class StoredBytes(StoredLinear):
    """A weight that is no parameter."""

    in_features, out_features, bias = 64, 32, None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bits", torch.zeros(1024, dtype=torch.uint8))


def test_weights_that_a_quantizer_stores_multiply_as_others() -> None:
    assert accounting.count_weights(nn.Sequential(nn.Linear(64, 64, bias=False), StoredBytes())) == (64 * 96, 64 * 64)


class Widths(Encoder):
    """Two matrices behind a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 12))

    def forward(self, inputs: Any, features: Any) -> Tensor:
        return self.layers(self.table(inputs["bases"]))


class Wider(Projector):
    """A matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 32)

    def forward(self, features_NW: Tensor, features: Any, grids: Any) -> Tensor:
        return self.linear(features_NW)


@pytest.mark.parametrize("frozen", [False, True])
def test_operations_of_encoders_are_those_that_torch_counts(frozen: bool) -> None:
    """With torch's own counter, forward and backward, of an encoder that trains and of one that does not."""
    model = TrainModel()
    model.media = MediaInputs({"dna": ProjectedEncoder(Widths(), Wider())})
    model.media["dna"].encoder.requires_grad_(not frozen)
    span = MediaSpan(2, 20, MediaItem("dna"), 20)
    batch = TokenObjective().collate([[Sample(list(range(64)), [True] * 64, "row", media=(span,))]], length=64)
    media = replace(batch.media["dna"], inputs={"bases": torch.zeros(20, dtype=torch.int64)})
    with FlopCounterMode(display=False) as counter:
        model.media["dna"](media).sum().backward()
    assert accounting.media_flop(model, replace(batch, media={"dna": media})) == counter.get_total_flops()
    assert accounting.media_flop(TrainModel(), batch) == 0


def test_without_a_known_peak_there_is_no_share_of_it(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_known_peak", lambda: None)
    record = last_record(runs.train("run", steps=1, callbacks=["flops"]))
    assert record["teraflops"] > 0
    assert "mfu" not in record


def test_memory_is_of_the_process_now(runs: Any) -> None:
    record = last_record(runs.train("run", steps=1, callbacks=["memory"]))
    assert 0.05 < record["resident_gib"] <= record["memory_gib"] * 1.01


def test_figures_of_callbacks_are_everywhere_that_figures_are(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.train("run", steps=1, callbacks=["flops"], trackers=["csv"])
    assert "tokens_seen" in (run / "metrics.csv").read_text().splitlines()[0]
    assert b"train/tokens_seen" in next((run / "tensorboard").iterdir()).read_bytes()
    train({"train": {"steps": 2}}, resume=run)
    assert last_record(run)["tokens_seen"] == 2 * 2 * 64


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 NVL", 835.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA H200 NVL", 835.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100 80GB PCIe", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L40", 181.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_device_has_the_peak_of_its_own_name(name: str, peak: float | None) -> None:
    assert accounting.known_peak(name) == peak


def test_no_name_hides_a_longer_one() -> None:
    assert {part: accounting.known_peak(f"NVIDIA {part}") for part in accounting.PEAK_TERAFLOPS} == dict(
        accounting.PEAK_TERAFLOPS
    )
