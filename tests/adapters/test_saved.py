"""Every adapter, saved: trained on from it is the same model, and merged under another one it is, too, wherever it merges."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import TINY, components, host_of, modules, small_options
from given_probe import GivenProbe

from mt_core import Adapter, ConfigError
from mt_core.errors import WeightsError
from mt_core.nn import Batch, TrainModel
from mt_core.plugins.host import PluginHost
from mt_train.assemble.injection import inject, start
from mt_train.assemble.load import load_model
from mt_train.assemble.parts import Parts
from mt_train.engine.build import fill_model, weight_names
from mt_train.engine.processes import Process
from mt_train.plugins.resolve import resolve

NAMES = list(modules())
IDS = torch.arange(24)[None]
BESIDE = {"bitfit"}
"""Adapters that bring a model what its family's weights have no place for: here biases."""


def parts_of(host: PluginHost, adapter: Any, merged: tuple[Path, ...] = ()) -> Parts:
    model = {"name": "llama", **TINY, "adapters": [str(each) for each in merged]}
    return Parts.of(resolve({"model": model, "adapter": adapter, "train": {"sequence_len": 2}}, host))


def logits(model: TrainModel) -> Tensor:
    zeros = torch.zeros_like(IDS)
    with torch.no_grad():
        return model.head(model.eval()(Batch(IDS, zeros, torch.arange(IDS.shape[1])[None], zeros)))  # type: ignore[no-any-return]


def train(parts: Parts) -> tuple[TrainModel, Adapter]:
    """A model with the adapter as a training might leave it: what is trained has moved."""
    model, process = parts.model(), Process(0, 1, 0, torch.device("cpu"))
    names = weight_names(model)
    fill_model(model, {}, seed=parts.config.train.seed, process=process)
    adapter = inject(parts, model, probe=lambda: drawn_probe(model))
    start(parts, model, adapter, names, process=process)
    draw, wanted = torch.Generator().manual_seed(1), set(adapter.trainable_parameters(model))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in wanted:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))
    return model, adapter


def drawn_probe(model: TrainModel) -> GivenProbe:
    """What rows might say of each layer."""
    draw = torch.Generator().manual_seed(2)
    layers = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    inputs = {name: torch.randn(64, each.in_features, generator=draw) for name, each in layers.items()}
    return GivenProbe(
        gradients={f"{name}.weight": torch.randn(each.weight.shape, generator=draw) for name, each in layers.items()},
        moments={name: (each.T @ each / 64).double() for name, each in inputs.items()},
        squares={name: torch.rand(each.out_features, generator=draw).double() for name, each in layers.items()},
    )


def save(folder: Path, name: str, parts: Parts, model: TrainModel, adapter: Adapter) -> Path:
    folder.mkdir()
    own = set(adapter.saved_state(model))
    found = {each: value.detach().clone() for each, value in model.named_parameters() if each in own}
    save_file(found, folder / "adapter_model.safetensors")
    options = parts.config.adapter.options.model_dump(mode="json")
    written = {"mt_adapter": {"name": name, "options": options, "plan": dict(adapter.plan)}}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_trained_on_from_and_merged(name: str, tmp_path: Path) -> None:
    """Merged: 1e-5 of the output, since one product takes the place of several."""
    host = host_of(modules()[name])
    parts = parts_of(host, {"name": name, **small_options(name)})
    model, adapter = train(parts)
    want = logits(model)
    plain = logits(load_model(parts_of(host, "full"), None, print))
    assert (want - plain).norm() > 1e-3 * plain.norm(), "it does something"
    folder = save(tmp_path / "saved", name, parts, model, adapter)
    on = load_model(parts_of(host, {"weights": str(folder)}), None, print)
    torch.testing.assert_close(logits(on), want, atol=1e-6, rtol=1e-6)
    if not components()[name].mergeable:
        with pytest.raises(ConfigError, match="which no weights can stand for"):
            parts_of(host, {"name": "lora"}, (folder,))
        return
    over = parts_of(host, {"name": "lora"}, (folder,))
    if name in BESIDE:
        with pytest.raises(WeightsError, match=r"beside what stands for linear layers.*train on from it"):
            load_model(over, None, print)
        return
    merged = load_model(over, None, print)
    assert (logits(merged) - want).norm() < 1e-5 * want.norm()
