"""Which parameters rules for matrices take, by name and shape."""

from __future__ import annotations

import pytest
import torch

from mt_plugin_optim import plugin
from mt_plugin_optim.options import MuonConfig
from mt_plugin_optim.policy import split_hidden

BLOCK = "model.layers.0."
SHAPES = {
    f"{BLOCK}self_attn.q_proj.weight": (8, 8),
    f"{BLOCK}self_attn.q_proj.bias": (8,),
    f"{BLOCK}mlp.experts.gate_up_proj": (4, 8, 12),
    f"{BLOCK}mlp.experts.gate_up_proj_bias": (4, 12),
    f"{BLOCK}mlp.experts.down_proj_bias": (4, 8),
    "model.embed_tokens.weight": (16, 8),
}
TRANSFORMS = [each.name for each in plugin.mt_optimizers() if each.split is split_hidden]


def test_biases_of_fused_experts_are_no_matrices() -> None:
    """(experts, outputs): as many vectors as there are experts, which the directions of a matrix would mix."""
    named = [(name, torch.empty(shape)) for name, shape in SHAPES.items()]
    names = {id(each): name for name, each in named}
    groups = split_hidden(named, MuonConfig())
    taken = {names[id(each)] for group in groups if group["transformed"] for each in group["params"]}
    assert taken == {f"{BLOCK}self_attn.q_proj.weight"}
    assert sum(len(group["params"]) for group in groups) == len(SHAPES)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_step_of_one_experts_bias_hangs_on_its_own_gradients(build, name: str) -> None:  # type: ignore[no-untyped-def]
    """A first bias moves alike under the same gradients of its own, whatever those of the second expert are."""
    key, found = f"{BLOCK}mlp.experts.down_proj_bias", []
    pytest.importorskip("bitsandbytes") if name == "galore-8bit" else None
    for factor in (1.0, -30.0):
        bias = torch.nn.Parameter(torch.zeros(2, 8))
        options = {"rank": 1} if name.startswith(("galore", "apollo")) else {}
        component = next(each for each in plugin.mt_optimizers() if each.name == name)
        optimizer = build(name, options, split_hidden([(key, bias)], component.config()))
        for seed in range(3):
            gradient = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
            bias.grad = gradient * torch.tensor([[1.0], [factor]])
            optimizer.step()
        found.append(bias.detach()[0])
    torch.testing.assert_close(*found)
