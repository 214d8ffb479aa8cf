"""Mixtures of transformers in both forms: the same values, figures of their routers, and a balance loss that is transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.huggingface import tiny_models
from tests.huggingface.test_parity import distance, ids_of, logits_of, rows_of
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from mt_core.adapters import linear_layers
from mt_core.nn import Experts, ListedExperts, expert_layouts, list_experts
from mt_core.plugins.host import PluginHost
from mt_core.weights import listed_experts
from mt_plugin_huggingface.config import HuggingFaceConfig
from mt_plugin_huggingface.model import HuggingFaceModel
from mt_train.assemble.parts import Parts
from mt_train.engine.build import build_quantized, fill_model
from mt_train.engine.processes import Process
from mt_train.plugins.resolve import resolve

FORMS = ("beam", "gpt_oss", "mixtral", "minimax_m3_vl_text", "nemotron_h")
"""A gate of its own; interleaved, transposed and with biases; other names; a clamped gate; none."""


def built(kind: str, **changes: Any) -> HuggingFaceModel:
    config = HuggingFaceConfig(config=tiny_models.content(kind, **changes))
    model = HuggingFaceModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            model.init_tensor(name, parameter, torch.Generator().manual_seed(len(name)))
    return model


def graded(model: HuggingFaceModel, ids: Tensor) -> Tensor:
    logits = logits_of(model, rows_of(ids))
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    (logits * weight).sum().backward()
    return logits.detach()


@pytest.mark.parametrize("kind", FORMS)
def test_the_listed_form_computes_and_learns_what_the_fused_one_does(kind: str) -> None:
    fused, listed = built(kind), built(kind)
    layouts = expert_layouts(fused)
    list_experts(listed)
    assert any(isinstance(each, ListedExperts) for each in listed.modules())
    assert not any(isinstance(each, Experts) for each in listed.modules())
    loaders = listed_experts({name: each.detach for name, each in fused.named_parameters()}, layouts)
    with torch.no_grad():
        for name, parameter in listed.named_parameters():
            parameter.copy_(loaders[name]())
    ids = ids_of(2, 20)
    assert distance(graded(listed, ids), graded(fused, ids)) < 1e-6
    gradients: dict[str, Tensor] = {n: p.grad for n, p in fused.named_parameters() if p.grad is not None}
    expected = listed_experts({name: each.clone for name, each in gradients.items()}, layouts)
    for name, parameter in listed.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert distance(parameter.grad, expected[name]()) < 1e-4, name


@pytest.mark.parametrize("kind", FORMS)
def test_a_listed_projection_begins_as_the_type_draws_it(kind: str) -> None:
    model = built(kind)
    list_experts(model)
    place, layout = next(iter(expert_layouts(model).items()))
    for name, shape in layout.listed_shapes().items():
        value = torch.full(shape, torch.nan)
        model.init_tensor(f"{place}.{name}", value, torch.Generator().manual_seed(0))
        if name.endswith("bias"):
            assert not value.any(), name
        else:
            assert value.std() == pytest.approx(tiny_models.SMALL["initializer_range"], rel=0.2), name


@pytest.mark.parametrize(
    "kind",
    [
        "afmoe",
        "gpt_oss",
        "hunyuan_v1_moe",
        "jetmoe",
        "llama4_text",
        "longcat_flash",
        "mixtral",
        "nemotron_h",
        "phimoe",
        "qwen2_moe",
    ],
)
def test_adapters_find_every_projection_but_those_of_routers(kind: str) -> None:
    """By names alone: experts are listed under an adapter."""
    with torch.device("meta"):
        model = HuggingFaceModel(HuggingFaceConfig(config=tiny_models.content(kind)))
    wanted = {name for layout in expert_layouts(model).values() for name in layout.projections}
    assert wanted <= set(model.default_targets)
    assert not {"router", "gate", "classifier", "wg", "shared_expert_gate"} & set(model.default_targets)
    found = {name.rpartition(".")[2] for name, each in linear_layers(model).items() if each.out_features != 1}
    assert found <= set(model.default_targets), "all-linear"


def test_a_rank_whose_tokens_all_choose_experts_that_compute_nothing_has_a_gradient_of_zero() -> None:
    """Other ranks would wait for one that has none; and ZeRO 3 may not see what is called for some experts alone."""
    model = built("longcat_flash", n_routed_experts=2, zero_expert_num=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("e_score_correction_bias"):
                parameter[:2] -= 1e3  # the choice of those that compute
    graded(model, ids_of(2, 8))
    found = {name: each.grad for name, each in model.named_parameters() if ".experts." in name}
    assert len(found) == 2 * tiny_models.LAYERS
    assert all(each is not None and not each.any() for each in found.values())
    assert not [name for name, _ in model.named_modules() if ".experts." in name]


@pytest.mark.parametrize("kind", ["longcat_flash", "phimoe"])
def test_a_model_in_four_bits_still_chooses_by_its_router(kind: str) -> None:
    raw = {"model": {"name": "huggingface", "config": tiny_models.content(kind)}, "quantizer": "nf4", "adapter": "lora"}
    parts = Parts.of(resolve({**raw, "train": {"sequence_len": 48}}, PluginHost.discover()))
    quantizer = parts.quantizer()
    assert quantizer is not None
    model = build_quantized(parts.model, quantizer, torch.device("cpu"))
    fill_model(model, {}, seed=0, process=Process(0, 1, 0, torch.device("cpu")))
    assert torch.isfinite(logits_of(model, rows_of(ids_of(1, 8)))).all()


@pytest.mark.parametrize("kind", ["jamba", "nemotron_h"])
def test_what_stands_for_a_projection_of_a_mixer_is_called_in_training(kind: str) -> None:
    """Their code reads some weights without a call, and kernels would take others: an adapter there would do nothing."""
    model = built(kind)
    list_experts(model)
    blocks = model.get_submodule(model.config.kind.blocks)
    targets = {name: each for name, each in blocks.named_modules() if name.rpartition(".")[2] in model.default_targets}
    called: set[str] = set()
    for name, each in targets.items():
        each.register_forward_hook(lambda *_, name=name: called.add(name))
    assert model.training
    logits_of(model, rows_of(ids_of(2, 24)))
    assert called == targets.keys()
    assert "dt_proj" not in model.default_targets


def test_the_balance_loss_is_that_of_transformers() -> None:
    """Both are defined alike for one mixture and one row; each choice of a token counts as one."""
    ids, size = ids_of(1, 24), {"num_hidden_layers": 1}
    plain, balanced = built("mixtral", **size), built("mixtral", **size)
    balanced = HuggingFaceModel(
        HuggingFaceConfig(
            config=tiny_models.content("mixtral", router_aux_loss_coef=0.5, output_router_logits=True, **size)
        )
    )
    assert balanced.config.balance_loss == 0.5
    balanced.load_state_dict(plain.state_dict())
    balanced.loss_factor.value = 1 / ids.numel()
    graded(plain, ids)
    graded(balanced, ids)
    gate = "model.layers.0.mlp.gate"
    inputs: list[Tensor] = []
    plain.get_submodule(gate).register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    logits_of(plain, rows_of(ids))
    weight = plain.get_parameter(f"{gate}.weight")
    theirs = load_balancing_loss_func((inputs[0].detach() @ weight.T,), 4, 2)
    (expected,) = torch.autograd.grad(0.5 * theirs, weight)
    added = balanced.get_parameter(f"{gate}.weight").grad - weight.grad  # type: ignore[operator]
    assert distance(added, expected) < 1e-4


@pytest.mark.parametrize("kind", ["mixtral", "phimoe"])
def test_a_router_draws_no_noise_in_training(kind: str) -> None:
    model, ids = built(kind), ids_of(1, 16)
    assert model.training
    assert torch.equal(logits_of(model, rows_of(ids)), logits_of(model, rows_of(ids)))
    assert torch.equal(logits_of(model, rows_of(ids)), logits_of(model.eval(), rows_of(ids)))


def test_operations_count_the_experts_that_a_token_chooses() -> None:
    """More experts are more weights, and no more operations but those of the router."""
    few, many = built("qwen3_moe"), built("qwen3_moe", num_experts=8)
    routers = 6.0 * 3 * 4 * few.config.config["hidden_size"]
    assert many.flops_per_token(64) - few.flops_per_token(64) == pytest.approx(routers)
    list_experts(many)
    assert many.flops_per_token(64) - few.flops_per_token(64) == pytest.approx(routers)


@pytest.mark.parametrize("kind", ["mixtral", "llama"])
def test_operations_count_weights_that_a_quantizer_has_stored(kind: str) -> None:
    raw = {"model": {"name": "huggingface", "config": tiny_models.content(kind)}, "quantizer": "nf4", "adapter": "lora"}
    parts = Parts.of(resolve({**raw, "train": {"sequence_len": 48}}, PluginHost.discover()))
    quantizer = parts.quantizer()
    assert quantizer is not None
    model = build_quantized(parts.model, quantizer, torch.device("cpu"))
    assert model.flops_per_token(48) == pytest.approx(built(kind).flops_per_token(48))
