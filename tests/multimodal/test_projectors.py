"""Projectors make as many hidden states as they say, and those that transformers makes.

Shapes: N features of all items, W width of a feature, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mt_core import DataError
from mt_core.media import Grid
from mt_plugin_multimodal.plugin import mt_projectors

PROJECTORS = {each.name: each for each in mt_projectors()}
W, D = 6, 5


def build(name: str, source: int = W, target: int = D, **options: Any) -> nn.Module:
    component = PROJECTORS[name]
    torch.manual_seed(0)
    model = component.build(component.config(**options), source=source, target=target)
    for parameter in model.parameters():
        parameter.data.normal_()
    return model


def project(model: nn.Module, features_NW: Tensor, grids: Sequence[Grid | None]) -> Tensor:
    features = [len(features_NW)] if grids == [None] else [times * rows * columns for times, rows, columns in grids]
    return model(features_NW, features, grids)


@pytest.mark.parametrize("name", ["pixel-shuffle", "average", "merger"])
@pytest.mark.parametrize("grid", [(1, 5, 6), (1, 6, 5), (1, 3, 3), None])
def test_a_grid_that_does_not_divide_is_a_bad_item(name: str, grid: Grid | None) -> None:
    component = PROJECTORS[name]
    with pytest.raises(DataError, match=f"the {name} projector joins .*; "):
        component.tokens(component.config(factor=2), 15 if grid is None else grid[1] * grid[2], grid)


def test_a_norm_of_means_begins_with_a_scale_of_1() -> None:
    model = build("average")
    model.init_tensor("mm_soft_emb_norm.weight", model.mm_soft_emb_norm.weight.data, torch.Generator())
    assert not model.mm_soft_emb_norm.weight.any(), "what it has beyond 1"


# ------------------------------------------------------------------------------------------------ beside transformers


def same(ours: nn.Module, theirs: nn.Module, x_INW: Tensor, grids: Sequence[Grid | None], expected: Tensor) -> None:
    ours.load_state_dict(theirs.state_dict(), strict=True)
    out = project(ours, x_INW.flatten(0, -2), grids)
    torch.testing.assert_close(out, expected.flatten(0, -2), rtol=1e-5, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    for (name, one), (_, other) in zip(sorted(ours.named_parameters()), sorted(theirs.named_parameters()), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


def drawn(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in module.parameters():
        parameter.data.normal_()
    return module


@pytest.mark.parametrize("bias", [True, False])
def test_mlp_equals_llava(bias: bool) -> None:
    modeling = pytest.importorskip("transformers.models.llava.modeling_llava")
    config = SimpleNamespace(
        vision_feature_layer=-2,
        vision_config=SimpleNamespace(hidden_size=W),
        text_config=SimpleNamespace(hidden_size=D),
        multimodal_projector_bias=bias,
        projector_hidden_act="gelu",
    )
    theirs, x = drawn(modeling.LlavaMultiModalProjector(config)), torch.randn(2, 4, W)
    same(build("mlp", bias=bias), theirs, x, [(1, 2, 2)] * 2, theirs(x))


def test_average_equals_gemma_3() -> None:
    modeling = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    config = SimpleNamespace(
        vision_config=SimpleNamespace(hidden_size=W, image_size=24, patch_size=4, layer_norm_eps=1e-6),
        text_config=SimpleNamespace(hidden_size=D),
        mm_tokens_per_image=9,
    )
    theirs, x = drawn(modeling.Gemma3MultiModalProjector(config)), torch.randn(2, 36, W)
    same(build("average", factor=2), theirs, x, [(1, 6, 6)] * 2, theirs(x))


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_merger_equals_qwen_whose_features_stand_in_squares_already(norm: str) -> None:
    modeling = pytest.importorskip("transformers.models.qwen2_5_vl.modeling_qwen2_5_vl")
    older = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    theirs = drawn(modeling.Qwen2_5_VLPatchMerger(D, W) if norm == "rms" else older.PatchMerger(D, W))
    x = torch.randn(24, W)
    same(build("merger", norm=norm), theirs, x, [None], theirs(x))


def test_merger_takes_squares_out_of_rows() -> None:
    model, x = build("merger"), torch.randn(24, W)
    rows = x.view(2, 3, 2, 2, W).transpose(1, 2).reshape(24, W)  # Qwen's squares, row by row of a grid of 4 x 6
    torch.testing.assert_close(project(model, rows, [(1, 4, 6)]), project(model, x, [None]))


def test_pixel_shuffle_equals_idefics_3() -> None:
    modeling = pytest.importorskip("transformers.models.idefics3.modeling_idefics3")
    config = SimpleNamespace(
        scale_factor=2, vision_config=SimpleNamespace(hidden_size=W), text_config=SimpleNamespace(hidden_size=D)
    )
    theirs, x = drawn(modeling.Idefics3Connector(config)), torch.randn(2, 36, W)
    expected = theirs(x)
    model = build("pixel-shuffle")
    model.proj.weight.data.copy_(theirs.modality_projection.proj.weight)
    torch.testing.assert_close(
        project(model, x.flatten(0, 1), [(1, 6, 6)] * 2), expected.flatten(0, 1), rtol=1e-5, atol=1e-5
    )
