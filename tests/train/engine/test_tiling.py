"""An MLP in tiles of tokens is the MLP: same outputs, same gradients, and no tensor of its hidden width for all tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mt_core.nn import GatedMLP, Mixture, TokenwiseMLP, chunked_loss, geglu, linear_with_low_rank
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.engine.tiling import run_mlp_in_tiles

D, F, TILE, ROWS, TOKENS = 16, 96, 24, 2, 50  # 100 tokens: four whole tiles, and one of 4


class LowRank(nn.Module):
    """A frozen projection with something trained beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.weight = base.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(3, base.in_features) / 4)
        self.b = nn.Parameter(torch.randn(base.out_features, 3) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return linear_with_low_rank(x, self.weight, None, self.a, self.b, 0.5)


def adapted(mlp: GatedMLP) -> GatedMLP:
    for name in ("gate_proj", "up_proj", "down_proj"):
        setattr(mlp, name, LowRank(getattr(mlp, name)))
    return mlp


KINDS = {
    "plain": lambda: GatedMLP(D, F),
    "fused with biases": lambda: GatedMLP(D, F, fused=True, bias=True, gate=geglu),
    "adapted": lambda: adapted(GatedMLP(D, F)),
}


def outcome(mlp: TokenwiseMLP, x_BTD: Tensor, tile: int | None) -> list[Tensor]:
    """Output, gradient of the input where it has one, and of each trained weight."""
    mlp.tile_tokens = None
    if tile is not None:
        run_mlp_in_tiles(mlp, tile)
    mlp.zero_grad()
    leaf_BTD = x_BTD.detach().requires_grad_(x_BTD.requires_grad)
    out_BTD = mlp(leaf_BTD)
    (out_BTD * torch.linspace(0.5, 1, out_BTD.numel(), dtype=x_BTD.dtype).view_as(out_BTD)).sum().backward()
    own = [leaf_BTD.grad] if leaf_BTD.grad is not None else []
    return [out_BTD.detach(), *own, *(p.grad.clone() for p in mlp.parameters() if p.grad is not None)]


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_all_tokens_at_once(kind: str, needs_gradient: bool) -> None:
    torch.manual_seed(0)
    mlp, x_BTD = KINDS[kind](), torch.randn(ROWS, TOKENS, D, requires_grad=needs_gradient)
    whole, tiled = outcome(mlp, x_BTD, None), outcome(mlp, x_BTD, TILE)
    assert len(whole) == len(tiled) == 1 + needs_gradient + sum(p.requires_grad for p in mlp.parameters())
    assert max(map(distance, tiled, whole)) < 1e-6
    with torch.no_grad():
        assert distance(mlp(x_BTD), whole[0]) < 1e-6


def test_gradients_of_weights_in_half_precision_are_rounded_once() -> None:
    """Added up in bf16 over 64 tiles they would be several times as far from the exact ones."""
    torch.manual_seed(0)
    mlp, x_BTD = GatedMLP(D, F), torch.randn(1, 1024, D)
    exact = outcome(mlp, x_BTD, None)
    mlp, x_BTD = mlp.to(torch.bfloat16), x_BTD.to(torch.bfloat16)
    whole, tiled = outcome(mlp, x_BTD, None), outcome(mlp, x_BTD, 16)
    for index in (1, 2, 3):
        assert distance(tiled[index], exact[index]) < 1.2 * distance(whole[index], exact[index])


class Dropping(TokenwiseMLP):
    """Draws random numbers, and tells which."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
        self.drawn: list[Tensor] = []

    def transform(self, x: Tensor) -> Tensor:
        mask = torch.rand(x.shape[0], D) < 0.5
        self.drawn.append(mask)
        return x * self.weight * mask


def test_the_backward_draws_what_the_forward_drew_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(0)
    mlp = Dropping()
    run_mlp_in_tiles(mlp, TILE)
    out_BTD = mlp(torch.randn(ROWS, TOKENS, D, requires_grad=True))
    before = torch.get_rng_state()
    out_BTD.sum().backward()
    first, again = mlp.drawn[:5], mlp.drawn[5:]
    assert len(again) == 5
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert torch.equal(before, torch.get_rng_state())


class Largest(TorchDispatchMode):
    """Watches the sizes of all tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.numel())
        return out


@pytest.mark.parametrize("recompute", [False, True])
def test_no_tensor_of_a_step_is_larger_than_a_tile_times_the_hidden_width(recompute: bool) -> None:
    hidden, tile, tokens = 1024, 64, 512
    config = LlamaConfig(vocab_size=40, max_seq_len=512, dim=D, n_layers=2, n_heads=2, n_kv_heads=1, ffn_dim=hidden)
    model = Llama(config)
    model.checkpoint_blocks = recompute
    ids = torch.randint(0, 40, (1, tokens))
    largest = {}
    for size in (None, tile):
        for module in model.modules():
            if isinstance(module, TokenwiseMLP) and size is not None:
                run_mlp_in_tiles(module, size)
        with Largest() as watch:
            hidden_BTD = model(batch_of(ids))
            chunked_loss(model.head, hidden_BTD[0], ids[0], chunk=64).backward()
        largest[size] = watch.numbers
    assert largest == {None: tokens * hidden, tile: tile * hidden}


def batch_of(ids_BT: Tensor) -> Any:
    from mt_core.nn import Batch

    places_BT = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
    return Batch(ids_BT, ids_BT, places_BT, torch.zeros_like(ids_BT)).with_index()


def test_a_recomputed_block_runs_tiles_once_forward_and_once_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its repetition ends where the MLP's input is there again."""
    config = LlamaConfig(vocab_size=40, max_seq_len=64, dim=D, n_layers=2, n_heads=2, n_kv_heads=1, ffn_dim=F)
    model, runs, transform = Llama(config), [], GatedMLP.transform
    monkeypatch.setattr(GatedMLP, "transform", lambda self, x: (runs.append(len(x)), transform(self, x))[1])
    model.checkpoint_blocks = True
    for block in model.model.layers:
        run_mlp_in_tiles(block.mlp, TILE)
    model(batch_of(torch.randint(0, 40, (1, 48)))).sum().backward()
    assert runs == [TILE] * 8  # two tiles, two blocks, two passes
    assert not issubclass(Mixture, TokenwiseMLP)
