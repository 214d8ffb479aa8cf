"""Every published size loads and has the published number of parameters."""

from __future__ import annotations

import pytest
import torch

from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_plugin_llama.variants import VARIANTS

PUBLISHED = {
    "1-7b": 6_738_415_616,
    "1-13b": 13_015_864_320,
    "1-33b": 32_528_943_616,
    "1-65b": 65_285_660_672,
    "2-7b": 6_738_415_616,
    "2-13b": 13_015_864_320,
    "2-70b": 68_976_648_192,
    "3-8b": 8_030_261_248,
    "3-70b": 70_553_706_496,
    "3.1-8b": 8_030_261_248,
    "3.1-70b": 70_553_706_496,
    "3.1-405b": 405_853_388_800,
    "3.2-1b": 1_235_814_400,
    "3.2-3b": 3_212_749_824,
    "3.3-70b": 70_553_706_496,
}
"""Totals of the published safetensors files (the model pages on the Hugging Face hub)."""


@pytest.mark.parametrize("size", VARIANTS)
def test_a_size_has_the_published_number_of_parameters(size: str) -> None:
    with torch.device("meta"):
        model = Llama(LlamaConfig(**VARIANTS[size]))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == PUBLISHED.get(size, count)
    assert (size in PUBLISHED) != (size == "tiny")
    if size == "tiny":
        assert 500_000 < count < 1_000_000


def test_new_weights_depend_on_seed_and_name_only() -> None:
    from mt_core.nn import tensor_generator

    model = Llama(LlamaConfig(**VARIANTS["tiny"]))

    def drawn(seed: int, name: str) -> torch.Tensor:
        tensor = torch.empty(128, 128)
        model.init_tensor(name, tensor, tensor_generator(seed, name))
        return tensor

    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(drawn(0, name), drawn(0, name))
    assert not torch.equal(drawn(0, name), drawn(1, name))
    assert drawn(0, name).std().item() == pytest.approx(0.02, rel=0.05)
    residual = drawn(0, "model.layers.0.self_attn.o_proj.weight").std().item()
    assert residual == pytest.approx(0.02 / (2 * model.config.n_layers) ** 0.5, rel=0.05)
