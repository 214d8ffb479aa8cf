"""Every published size loads and has the published number of parameters; what a generation lacks is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from mt_core.nn import tensor_generator, tokens_seen
from mt_plugin_gemma.config import GemmaConfig
from mt_plugin_gemma.model import Gemma
from mt_plugin_gemma.shapes import parameter_shapes
from mt_plugin_gemma.variants import VARIANT_DEFAULTS, VARIANTS

PUBLISHED = {
    "1-2b": 2_506_172_416,
    "1-7b": 8_537_680_896,
    "2-2b": 2_614_341_888,
    "2-9b": 9_241_705_984,
    "2-27b": 27_227_128_320,
    "3-270m": 268_098_176,
    "3-1b": 999_885_952,
    "3-4b": 4_300_079_472,
    "3-12b": 12_187_325_040,
    "3-27b": 27_432_406_640,
}
"""Totals of the published safetensors files (the model pages on the Hugging Face hub)."""

VISION_TOWER = 416_866_032
"""SigLIP, in 4b, 12b and 27b; beside it stand a projection of its 1152 channels and a norm."""


@pytest.mark.parametrize("size", VARIANTS)
def test_a_size_has_the_published_number_of_parameters(size: str) -> None:
    config = GemmaConfig(**VARIANTS[size])
    with torch.device("meta"):
        model = Gemma(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == parameter_shapes(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    if size.endswith("tiny"):
        assert 500_000 < count < 1_000_000
        assert size in VARIANT_DEFAULTS
        return
    sees = size in ("3-4b", "3-12b", "3-27b")
    assert count + sees * (VISION_TOWER + 1152 * config.dim + 1152) == PUBLISHED[size]


def test_which_blocks_are_local_follows_the_papers() -> None:
    """https://arxiv.org/abs/2408.00118 (every other one, the first is local), https://arxiv.org/abs/2503.19786 (5 : 1)."""
    second, third = (GemmaConfig(**VARIANTS[size]) for size in ("2-2b", "3-1b"))
    assert [second.is_local(index) for index in range(4)] == [True, False, True, False]
    assert [third.is_local(index) for index in range(7)] == [True] * 5 + [False, True]
    assert not any(GemmaConfig(**VARIANTS["1-2b"]).is_local(index) for index in range(18))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"generation": 1, "window": 4}, "generation 1 does not read"),
        ({"generation": 2, "rope_local_theta": 1e4}, "generation 2 does not read rope_local_theta"),
        ({"generation": 3, "attention_softcap": 50.0}, "generation 3 does not read attention_softcap"),
        ({"generation": 3, "window": None}, "generation 3 needs window"),
        ({"generation": 3, "n_kv_heads": 3}, "not a multiple of n_kv_heads=3"),
        ({"generation": 4}, "generation"),
        ({"generation": 3, "head_dim": 15}, "head_dim"),
    ],
)
def test_what_a_generation_does_not_have_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GemmaConfig(**{**VARIANTS[f"{min(changes['generation'], 3)}-tiny"], **changes})


def test_new_weights_depend_on_seed_and_name_only() -> None:
    model = Gemma(GemmaConfig(**VARIANTS["3-tiny"]))

    def drawn(name: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty(*shape)
        model.init_tensor(name, tensor, tensor_generator(0, name))
        return tensor

    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(drawn(name, 128, 128), drawn(name, 128, 128))
    assert drawn(name, 128, 128).std().item() == pytest.approx(0.02, rel=0.05)
    residual = drawn("model.layers.0.mlp.down_proj.weight", 128, 128).std().item()
    assert residual == pytest.approx(0.02 / (2 * model.config.n_layers) ** 0.5, rel=0.05)
    assert not drawn("model.layers.0.self_attn.q_norm.weight", 32).any(), "a scale of 1"


@pytest.mark.parametrize("window", [None, 1, 7, 30, 50])
def test_a_window_costs_what_it_sees(window: int | None) -> None:
    seen = [min(place + 1, window or 30) for place in range(30)]
    assert tokens_seen(30, window) == pytest.approx(sum(seen) / 30)
