"""CLIP, SigLIP and DINOv2 beside transformers: features and gradients, from folders that transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mt_core.media import EncoderComponent
from mt_plugin_multimodal.plugin import mt_encoders

transformers = pytest.importorskip("transformers")

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 20,
    "patch_size": 4,
}
ENCODERS = {each.name: each for each in mt_encoders()}


def theirs(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    if name == "dinov2":
        config = transformers.Dinov2Config(**SHAPE, mlp_ratio=2, **options)
        model = transformers.Dinov2Model(config)
    elif name == "clip":
        model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**SHAPE, intermediate_size=64, **options))
    else:
        model = transformers.SiglipVisionModel(
            transformers.SiglipVisionConfig(**SHAPE, intermediate_size=64, **options)
        )
    for parameter in model.parameters():  # biases, factors and norms too, so that one that is left out is seen
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def ours(component: EncoderComponent, folder: Path, **options: Any) -> nn.Module:
    reader = component.formats[0]
    assert reader.matches(folder)
    config = component.config(**{**reader.values(folder), **options})
    model = component.build(config)
    tensors = {name: load() for name, load in reader.tensors(folder, config).items()}
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def written(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def gradient(out: Tensor, model: nn.Module, pixels: Tensor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    (out * torch.randn(out.shape, generator=generator)).sum().backward()
    embedding = next(
        value for name, value in model.named_parameters() if "patch_embedding" in name and name.endswith("weight")
    )
    assert pixels.grad is not None
    assert embedding.grad is not None
    return pixels.grad.clone(), embedding.grad.clone()


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov2"])
@pytest.mark.parametrize("layer", [None, -1, -2, 1, 0])
def test_features_and_gradients_equal_those_of_transformers(name: str, layer: int | None, tmp_path: Path) -> None:
    reference = theirs(name)
    model = ours(ENCODERS[name], written(reference, tmp_path), layer=layer)
    pixels = torch.randn(3, 3, 20, 20)
    found, expected = pixels.clone().requires_grad_(), pixels.clone().requires_grad_()
    full = reference(expected, output_hidden_states=True)
    reference_features = full.last_hidden_state if layer is None else full.hidden_states[layer]
    reference_features = reference_features[:, int(name != "siglip") :].flatten(0, 1)
    features = model({"pixels": found}, [25] * 3)
    torch.testing.assert_close(features, reference_features, rtol=1e-5, atol=1e-5)
    for one, other in zip(
        gradient(features, model, found), gradient(reference_features, reference, expected), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "dinov2"])
def test_the_class_token_stands_first_where_it_is_kept(name: str, tmp_path: Path) -> None:
    reference = theirs(name)
    model = ours(ENCODERS[name], written(reference, tmp_path), keep_class=True)
    pixels = torch.randn(2, 3, 20, 20)
    features = model({"pixels": pixels}, [26, 26])
    torch.testing.assert_close(features, reference(pixels).last_hidden_state.flatten(0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov2"])
def test_positions_are_interpolated_for_another_image_as_transformers_does(name: str, tmp_path: Path) -> None:
    reference = theirs(name)
    model = ours(ENCODERS[name], written(reference, tmp_path), image=28)
    pixels = torch.randn(2, 3, 28, 28)
    options = {} if name == "dinov2" else {"interpolate_pos_encoding": True}
    expected = reference(pixels, **options).last_hidden_state[:, int(name != "siglip") :]
    torch.testing.assert_close(model({"pixels": pixels}, [49] * 2), expected.flatten(0, 1), rtol=1e-5, atol=1e-5)


def test_blocks_above_the_layer_are_not_built_and_all_others_get_a_gradient() -> None:
    for component in mt_encoders()[:3]:
        model = component.build(component.config(layer=-2))
        assert not any(name.startswith(("encoder.layers.1.", "post_layernorm")) for name, _ in model.named_parameters())
        model({"pixels": torch.randn(1, 3, 16, 16)}, [16]).square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
