"""Norms and gated MLPs of transformers are run by mt_core's operations where these give their bits."""

from __future__ import annotations

import pytest
import torch
from tests.huggingface import tiny_models
from torch import nn

from mt_core.nn import RMSNorm, swiglu
from mt_plugin_huggingface.config import HuggingFaceConfig
from mt_plugin_huggingface.model import HuggingFaceModel


def norms_of(model: nn.Module) -> dict[str, nn.Module]:
    return {name: each for name, each in model.named_modules() if name.endswith("norm") and not [*each.children()]}


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "llama", "olmo2"])
def test_root_mean_square_norms_have_the_bits_and_the_gradients_of_transformers(kind: str) -> None:
    """Scaled in the dtype of the input, in fp32, or by what is beyond 1."""
    theirs = norms_of(tiny_models.model(kind))
    ours = norms_of(HuggingFaceModel(HuggingFaceConfig(config=tiny_models.content(kind))))
    assert ours.keys() == theirs.keys()
    for name, norm in ours.items():
        assert isinstance(norm, RMSNorm), name
        norm.load_state_dict(theirs[name].state_dict())
        for dtype in (torch.bfloat16, torch.float32):
            x = torch.randn(2, 3, len(norm.weight)).to(dtype).requires_grad_()
            outputs = [each.to(dtype)(x) for each in (norm, theirs[name])]
            assert torch.equal(*outputs), name
        torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), x)[0] for each in outputs))


def test_a_norm_that_is_another_one_stays_transformers_own() -> None:
    model = HuggingFaceModel(HuggingFaceConfig(config=tiny_models.content("cohere2")))
    assert not any(isinstance(each, RMSNorm) for each in norms_of(model).values())


def test_an_activation_that_takes_the_place_of_swiglu_is_the_one_that_runs() -> None:
    """As a kernel does."""
    model = HuggingFaceModel(HuggingFaceConfig(config=tiny_models.content("llama")))
    mlps = [module for module in model.modules() if getattr(module, "gate", None) is swiglu]
    assert mlps
    calls: list[int] = []
    for mlp in mlps:
        for parameter in mlp.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        x = torch.randn(2, mlp.get_submodule("gate_proj").in_features)
        expected = mlp(x)
        mlp.gate = lambda gate, up: calls.append(1) or swiglu(gate, up)  # type: ignore[func-returns-value]
        assert torch.equal(mlp(x), expected)
    assert len(calls) == len(mlps)
