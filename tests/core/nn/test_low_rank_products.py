"""Several layers with pairs beside them as one function: what the layers give one by one, and what peft's give, with less kept."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from mt_core.adapters import LoraLinear, viewing
from mt_core.nn import GatedMLP, GroupedQueryAttention, decoder, geglu, swiglu
from mt_core.nn.low_rank_products import LowRank, gated_mlp_with_low_rank, linears_with_low_rank

SIZES = SimpleNamespace(dim=16, n_layers=1, n_heads=4, n_kv_heads=2, head_width=6)
NAMES = ("gate_proj", "up_proj", "down_proj", "q_proj", "k_proj", "v_proj", "o_proj")


def layer(inputs: int, outputs: int, rank: int, *, bias: bool, frozen: bool) -> LowRank:
    shapes = [(outputs, inputs), (outputs,), (rank, inputs), (outputs, rank)]
    weight, offset, a, b = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    for each in (weight, offset, a, b) if not frozen else (b,):
        each.requires_grad_()
    return LowRank(weight, offset if bias else None, a, b, 0.1 + rank)


def plain(x: Tensor, given: LowRank) -> Tensor:
    offset = 0 if given.bias_F is None else given.bias_F
    return x @ given.weight_FE.mT + offset + given.scale * (x @ given.a_RE.mT) @ given.b_FR.mT


def grads_of(outs: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(out.shape, generator=generator, dtype=out.dtype) for out in outs]
    return list(torch.autograd.grad(outs, leaves, weights))


def leaves_of(x: Tensor, layers: list[LowRank]) -> list[Tensor]:
    return [
        each
        for each in (x, *itertools.chain(*(given[:4] for given in layers)))
        if each is not None and each.requires_grad
    ]


def agree(found: list[Tensor], wanted: list[Tensor], tolerance: float = 1e-11) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("wants_x", [True, False])
def test_layers_of_one_input_have_the_values_and_gradients_of_the_formula(
    bias: bool, frozen: bool, wants_x: bool
) -> None:
    """Of other widths and ranks, with bases and first matrices that are frozen or trained."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=wants_x)
    layers = [layer(7, out, rank, bias=bias, frozen=frozen) for out, rank in ((6, 2), (4, 3), (4, 1))]
    found, wanted = list(linears_with_low_rank(x, layers)), [plain(x, each) for each in layers]
    agree(found, wanted)
    agree(grads_of(found, leaves_of(x, layers)), grads_of(wanted, leaves_of(x, layers)))


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("wants_x", [True, False])
@pytest.mark.parametrize(
    ("activation", "formula"),
    [(swiglu, nn.functional.silu), (geglu, lambda x: nn.functional.gelu(x, approximate="tanh"))],
)
def test_a_gated_mlp_has_the_value_and_gradients_of_the_formula(
    activation: Callable[[Tensor, Tensor], Tensor], formula: Callable[[Tensor], Tensor], wants_x: bool, frozen: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=wants_x)
    layers = [layer(*shape, bias=True, frozen=frozen) for shape in ((7, 9, 2), (7, 9, 3), (9, 7, 1))]
    found = [gated_mlp_with_low_rank(x, layers, activation)]
    wanted = [plain(formula(plain(x, layers[0])) * plain(x, layers[1]), layers[2])]
    agree(found, wanted)
    agree(grads_of(found, leaves_of(x, layers)), grads_of(wanted, leaves_of(x, layers)))


class Both(nn.Module):
    """An MLP and projections of attention, as a block has them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mlp, self.attention = GatedMLP(16, 24), GroupedQueryAttention(SIZES, 0, None, bias=True)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.mlp(x), *self.attention._project(x)]


def adapted(names: tuple[str, ...] = NAMES, kind: type[LoraLinear] = LoraLinear, **options: float) -> Both:
    both = Both().requires_grad_(False)
    for name in names:
        place = both.get_submodule(f"{'mlp' if hasattr(both.mlp, name) else 'attention'}")
        new = kind(getattr(place, name), rank=3, scale=0.5, **options)  # type: ignore[arg-type]
        for parameter in (new.lora_A, new.lora_B):
            nn.init.normal_(parameter, std=0.3)
        setattr(place, name, new)
    return both


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions of several layers that ran."""
    found: list[str] = []
    for name in ("gated_mlp_with_low_rank", "linears_with_low_rank"):
        own = getattr(decoder, name)
        monkeypatch.setattr(decoder, name, lambda *given, own=own, name=name: found.append(name) or own(*given))
    return found


def test_a_block_with_lora_is_what_peft_makes_of_it(calls: list[str]) -> None:
    ours = adapted()
    theirs = get_peft_model(Both(), LoraConfig(r=3, lora_alpha=1.5, target_modules=list(NAMES)))  # type: ignore[arg-type]
    own = dict(ours.named_parameters())
    pairs = {}
    for name, parameter in theirs.named_parameters():
        short = name.removeprefix("base_model.model.").replace("base_layer.", "")
        short = short.replace("lora_A.default.weight", "lora_A").replace("lora_B.default.weight", "lora_B")
        with torch.no_grad():
            parameter.copy_(own[short])
        if parameter.requires_grad and "o_proj" not in name:
            pairs[short] = parameter
    x = torch.randn(2, 5, 16)
    found, wanted = ours(x), theirs(x)
    agree(found, wanted, 1e-6)
    assert calls == ["gated_mlp_with_low_rank", "linears_with_low_rank"]
    found, wanted = grads_of(found, [own[name] for name in pairs]), grads_of(wanted, list(pairs.values()))
    assert all((a - b).norm() < 1e-6 * b.norm() for a, b in zip(found, wanted, strict=True))


def test_the_mlp_keeps_its_input_what_the_activation_takes_and_the_ranks_numbers() -> None:
    both, kept = adapted(), dict[int, int]()
    weights = {parameter.data_ptr() for parameter in both.parameters()}
    x = torch.randn(1, 100, 16, requires_grad=True)

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        both.mlp(x)
    assert sum(kept.values()) == 100 * (16 + 2 * 24 + 3 * 3)


def test_it_is_recomputed_with_the_same_bits() -> None:
    both, x = adapted(), torch.randn(2, 5, 16, requires_grad=True)
    leaves = [x, *(each for each in both.mlp.parameters() if each.requires_grad)]
    again = torch.utils.checkpoint.checkpoint(both.mlp, x, use_reentrant=False)
    assert all(map(torch.equal, grads_of([again], leaves), grads_of([both.mlp(x)], leaves)))


class WithMore(LoraLinear):
    def adapted_output(self, x: Tensor) -> Tensor:
        return super().adapted_output(x) + 1


@pytest.mark.parametrize(
    "both",
    [
        adapted(("up_proj", "down_proj", "q_proj", "v_proj")),
        adapted(dropout=0.1),
        adapted(kind=WithMore),
    ],
    ids=["not every layer", "dropout", "an output of its own"],
)
def test_layers_run_one_by_one_where_one_is_more_than_a_pair(both: Both, calls: list[str]) -> None:
    both(torch.randn(2, 5, 16))
    assert not calls


def test_hooks_views_and_merged_layers_run_one_by_one(calls: list[str]) -> None:
    x, both = torch.randn(2, 5, 16), adapted()
    wanted = both(x)
    calls.clear()
    seen = []
    hooks = [getattr(part, name).register_forward_pre_hook(lambda *given: seen.append(1))
             for part, name in ((both.mlp, "up_proj"), (both.attention, "k_proj"))]  # fmt: skip
    agree(both(x), wanted, 1e-6)
    assert len(seen) == 2
    for hook in hooks:
        hook.remove()
    with viewing(both, "base"):
        assert all(map(torch.equal, both(x), Both()(x)))
    merged = copy.deepcopy(both)
    for name in NAMES:
        getattr(merged.mlp if hasattr(merged.mlp, name) else merged.attention, name).merge()
    agree(merged(x), wanted, 1e-5)
    assert not calls


def test_a_part_in_fp32_runs_by_itself_in_half_precision(calls: list[str]) -> None:
    adapted(fp32=True).bfloat16()(torch.randn(2, 5, 16).bfloat16())
    assert not calls
