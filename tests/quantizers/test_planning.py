"""What is said of quantized weights before a run begins: on paper, and in its head."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from mt_core.adapters import adapted_layers
from mt_core.nn import TrainModel
from mt_core.plugins.host import PluginHost
from mt_train.assemble.injection import inject
from mt_train.assemble.parts import Parts
from mt_train.assemble.report import parameter_counts
from mt_train.cli.train import main
from mt_train.engine.build import build_quantized, stored_layers
from mt_train.plugins.resolve import resolve

pytestmark = pytest.mark.needs("mt-plugin-llama")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> TrainModel:
    """As a run has it: weights in four bits, LoRA beside them."""
    parts = Parts.of(resolve({"model": "llama", "quantizer": "nf4", "adapter": "lora"}, PluginHost.discover()))
    quantizer = parts.quantizer()
    built = build_quantized(parts.model, quantizer, CPU)
    adapter = inject(parts, built)
    trained = set(adapter.trainable_parameters(built))
    for name, parameter in built.named_parameters():
        parameter.requires_grad_(name in trained)
    return built


def held_bytes(model: TrainModel) -> tuple[int, int]:
    """Bytes of the parameters, and of what is quantized."""
    bits = [each for _, layer in adapted_layers(model) for each in layer.base.buffers()]
    return tuple(sum(t.numel() * t.element_size() for t in each) for each in (model.parameters(), bits))


def test_a_plan_counts_a_quantized_weight_with_the_bytes_that_it_takes(
    model: TrainModel, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = []
    for quantizer in ("nf4", "none"):
        words = ["--model", "llama", "--quantizer", quantizer, "--adapter", "lora", "--train.steps", "2"]
        assert main([*words, "--dry-run", "--json"]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    (quantized,), (dense,) = (plan["stages"] for plan in plans)
    assert quantized["memory"]["weights"]["device"] == sum(held_bytes(model))
    assert quantized["parameters"] == dense["parameters"]
    for part in ("gradients", "optimizer", "activations"):
        assert quantized["memory"][part] == dense["memory"][part]


def test_a_run_says_how_many_weights_are_quantized(model: TrainModel) -> None:
    engine = SimpleNamespace(module=SimpleNamespace(model=model))
    counts = {(each["dtype"], each["trained"]): each for each in parameter_counts(engine)}  # type: ignore[arg-type]
    found = counts["quantized", False]
    layers = [layer for _, layer in stored_layers(model)]
    assert found["count"] == sum(layer.in_features * layer.out_features for layer in layers)
    assert found["bytes"] == held_bytes(model)[1]
    assert found["bytes"] * 8 / found["count"] < 4.3
    assert set(counts) == {("quantized", False), ("float32", False), ("float32", True)}
