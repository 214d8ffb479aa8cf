"""CLIP, SigLIP and DINOv2 beside transformers: features and gradients, from folders that transformers wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from mt_core import WeightsError
from mt_core.media import EncoderComponent
from mt_plugin_multimodal.encoders.vit import COMPONENTS, ClipConfig, Dinov2Config
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


def test_a_gated_dinov2_equals_that_of_transformers(tmp_path: Path) -> None:
    reference = theirs("dinov2", use_swiglu_ffn=True)
    model = ours(ENCODERS["dinov2"], written(reference, tmp_path))
    pixels = torch.randn(2, 3, 20, 20)
    expected = reference(pixels).last_hidden_state[:, 1:].flatten(0, 1)
    torch.testing.assert_close(model({"pixels": pixels}, [25, 25]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov2"])
def test_features_have_the_dtype_of_the_weights(name: str) -> None:
    component = ENCODERS[name]
    config = component.config(image=20, trained_image=16)
    fp32, bf16 = component.build(config), component.build(config).bfloat16()
    bf16.load_state_dict(fp32.state_dict())
    pixels = torch.randn(1, 3, 20, 20)
    features = bf16({"pixels": pixels}, [25])
    assert features.dtype == torch.bfloat16
    torch.testing.assert_close(features.float(), fp32({"pixels": pixels}, [25]), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov2"])
def test_positions_are_interpolated_for_another_image_as_transformers_does(name: str, tmp_path: Path) -> None:
    reference = theirs(name)
    model = ours(ENCODERS[name], written(reference, tmp_path), image=28)
    pixels = torch.randn(2, 3, 28, 28)
    options = {} if name == "dinov2" else {"interpolate_pos_encoding": True}
    expected = reference(pixels, **options).last_hidden_state[:, int(name != "siglip") :]
    torch.testing.assert_close(model({"pixels": pixels}, [49] * 2), expected.flatten(0, 1), rtol=1e-5, atol=1e-5)


def test_blocks_above_the_layer_are_not_built_and_all_others_get_a_gradient() -> None:
    for component in COMPONENTS:
        model = component.build(component.config(layer=-2))
        assert not any(name.startswith(("encoder.layers.1.", "post_layernorm")) for name, _ in model.named_parameters())
        model({"pixels": torch.randn(1, 3, 16, 16)}, [16]).square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


# ------------------------------------------------------------------------------------------------------------ folders


def published(name: str, **options: Any) -> Any:
    """A whole model with an encoder in it, as a folder has it."""
    vision = {**SHAPE, "intermediate_size": 64}
    text = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 20,
    }
    vision_config = transformers.SiglipVisionConfig if "siglip" in name else transformers.CLIPVisionConfig
    torch.manual_seed(0)
    if name == "clip":
        return transformers.CLIPModel(transformers.CLIPConfig(vision_config=vision, text_config=text))
    if name == "siglip":
        return transformers.SiglipModel(transformers.SiglipConfig(vision_config=vision, text_config=text))
    if name == "gemma3 siglip":
        config = transformers.Gemma3Config(
            vision_config=vision_config(**vision),
            text_config=transformers.Gemma3TextConfig(**text, head_dim=4),
            mm_tokens_per_image=1,
        )
        return transformers.Gemma3ForConditionalGeneration(config)
    taken = {"vision_feature_select_strategy": "full" if "siglip" in name else "default", **options}
    config = transformers.LlavaConfig(
        vision_config=vision_config(**vision), text_config=transformers.LlamaConfig(**text), **taken
    )
    return transformers.LlavaForConditionalGeneration(config)


@pytest.mark.parametrize("name", ["clip", "siglip", "llava clip", "llava siglip", "gemma3 siglip"])
def test_the_encoder_is_found_in_folders_of_whole_models(name: str, tmp_path: Path) -> None:
    whole = published(name).eval()
    model = ours(ENCODERS[name.split()[-1]], written(whole, tmp_path))
    tower = whole.vision_model if name in ("clip", "siglip") else whole.model.vision_tower
    pixels = torch.randn(2, 3, 20, 20)
    states = tower(pixels, output_hidden_states=True)
    expected = states.hidden_states[-2] if "llava" in name else states.last_hidden_state
    expected = expected[:, int("siglip" not in name) :].flatten(0, 1)
    torch.testing.assert_close(model({"pixels": pixels}, [25] * 2), expected, rtol=1e-5, atol=1e-5)


def test_a_llava_folder_says_which_layer_and_whether_the_class_token_is_kept(tmp_path: Path) -> None:
    folder = written(published("llava clip", vision_feature_layer=-1, vision_feature_select_strategy="full"), tmp_path)
    values = ENCODERS["clip"].formats[0].values(folder)
    assert (values["layer"], values["keep_class"]) == (-1, True)


@pytest.mark.parametrize("prefix", ["vision_tower.vision_model.", "model.vision_tower.", "vision_model."])
def test_names_of_older_files_are_read(prefix: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    written(theirs("clip"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    expected = ours(ENCODERS["clip"], tmp_path)
    old = {f"{prefix}{name}": tensor for name, tensor in tensors.items()} | {
        f"{prefix}embeddings.position_ids": torch.arange(26)[None],
        "language_model.lm_head.weight": torch.zeros(2, 2),
    }
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = ours(ENCODERS["clip"], tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(found.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "siglip_vision_model"}, "'clip' reads clip and clip_vision_model"),
        ({"num_channels": 4}, "num_channels=4"),
        ({"vision_feature_layer": [-2, -5]}, "takes vision_feature_layer="),
        ({"vision_config": 3}, "wrong type"),
    ],
)
def test_a_folder_that_is_none_of_the_encoder_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(theirs("clip"), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(WeightsError, match=message):
        ENCODERS["clip"].formats[0].values(tmp_path)


def test_a_folder_without_a_vision_model_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    component = ENCODERS["clip"]
    written(theirs("clip"), tmp_path)
    save_file({"lm_head.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="no tensors of a vision model"):
        component.formats[0].tensors(tmp_path, component.config())


def test_the_image_processor_of_a_folder_comes_with_its_sizes(tmp_path: Path) -> None:
    written(theirs("dinov2"), tmp_path)
    said = {"size": {"shortest_edge": 16}, "crop_size": {"height": 12, "width": 12}, "image_mean": [0.1, 0.2, 0.3]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    config = Dinov2Config(**ENCODERS["dinov2"].formats[0].values(tmp_path))
    assert (config.shape.image, config.trained_image, config.edge, config.mean) == (12, 20, 16, (0.1, 0.2, 0.3))
    assert ENCODERS["dinov2"].processor(config).dummy()[0].grid == (1, 3, 3)


# ------------------------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "give -3 to 2"),
        ({"layer": -4}, "give -3 to 2"),
        ({"heads": 3}, "heads=3 do not divide width=64"),
        ({"image": 3}, "hold no patch of 4"),
        ({"edge": 15}, "black margin"),
        ({"std": [0.5, 0, 0.5]}, "divides by 0"),
        ({"background": "whitish"}, "unknown color specifier"),
        ({"size": "huge"}, "size"),
    ],
)
def test_sizes_that_do_not_fit_are_one_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ClipConfig(**options)


@pytest.mark.parametrize(
    ("name", "options", "parameters", "features"),
    [  # as the published files have them, without what makes one vector of an image (SigLIP: 15 million), and DINOv2's mask token
        ("clip", {"size": "base-16"}, 85_797_888, 196),
        ("clip", {"size": "large-14-336"}, 303_505_408, 576),
        ("siglip", {"size": "so400m-14-384"}, 428_225_600 - 15_238_352, 729),
        ("dinov2", {"size": "giant-14", "trained_image": 518}, 1_136_480_768 - 1536, 256),
        ("dinov2", {"size": "base-14", "trained_image": 518}, 86_580_480 - 768, 256),
    ],
)
def test_named_sizes_are_those_that_were_published(
    name: str, options: dict[str, Any], parameters: int, features: int
) -> None:
    component = ENCODERS[name]
    config = component.config(**options)
    with torch.device("meta"):
        model = component.build(config)
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert component.processor(config).dummy()[0].features == features
