"""The layer under every adapter, and its fused product, against plain torch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mt_core import LowRankConfig
from mt_core.adapters import LoraLinear
from mt_core.nn import AdaptedLinear, LossFactor, StoredLinear, linear_with_low_rank, low_rank, with_loss


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("given", [True, False])
def test_the_fused_product_has_value_and_gradient_of_the_plain_one(given: bool) -> None:
    x, a, b, into = tensors((2, 3, 7), (4, 7), (5, 4), (2, 3, 5))
    plain = 0.5 * (x @ a.mT) @ b.mT + (into if given else 0)
    fused = low_rank(x, a, b, 0.5, into=into.clone() if given else None)
    torch.testing.assert_close(fused, plain, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(plain)
    wanted = (x, a, b, into) if given else (x, a, b)
    expected = torch.autograd.grad((plain * weight).sum(), wanted)
    found = torch.autograd.grad((fused * weight).sum(), wanted)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_fused_product_passes_gradcheck() -> None:
    x, a, b = tensors((3, 5), (2, 5), (4, 2))
    assert torch.autograd.gradcheck(lambda *each: low_rank(*each, 0.7), (x, a, b))


@pytest.mark.parametrize("biased", [True, False])
def test_the_product_in_one_piece_has_value_and_gradients_of_the_plain_one(biased: bool) -> None:
    x, weight, bias, a, b = tensors((2, 3, 7), (5, 7), (5,), (4, 7), (5, 4))
    given = bias if biased else None
    plain = functional.linear(x, weight, given) + 0.5 * (x @ a.mT) @ b.mT
    fused = linear_with_low_rank(x, weight, given, a, b, 0.5)
    torch.testing.assert_close(fused, plain, rtol=1e-12, atol=1e-12)
    wanted = [each for each in (x, weight, given, a, b) if each is not None]
    cotangent = torch.randn_like(plain)
    found, expected = (torch.autograd.grad((each * cotangent).sum(), wanted) for each in (fused, plain))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_what_the_product_in_one_piece_gives_may_be_changed_in_place() -> None:
    """As blocks of other authors do with what a projection gives (Falcon)."""
    x, weight, a, b = tensors((2, 3, 7), (5, 7), (4, 7), (5, 4))
    found, expected = (linear_with_low_rank(x, weight, None, a, b, 0.5) for _ in range(2))
    found += 2 * x[..., :5]
    grads = [torch.autograd.grad(each.sum(), x)[0] for each in (found, expected + 2 * x[..., :5])]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_with_a_frozen_first_matrix_inputs_are_not_kept_and_gradients_are_the_same(dropout: float) -> None:
    layer = LoraLinear(nn.Linear(64, 64, bias=False), rank=4, scale=1.0, dropout=dropout).eval()
    layer.initialise(torch.Generator().manual_seed(0))
    nn.init.normal_(layer.lora_B)
    x, kept = torch.randn(32, 64), []
    inputs = [nn.Parameter(x.clone()) for _ in range(2)]

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    layer.weight.requires_grad_(False)
    expected = torch.autograd.grad(layer(inputs[0]).square().sum(), (inputs[0], layer.lora_B))
    layer.lora_A.requires_grad_(False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(inputs[1])
    found = torch.autograd.grad(out.square().sum(), (inputs[1], layer.lora_B))
    assert all(each.untyped_storage().data_ptr() != inputs[1].untyped_storage().data_ptr() for each in kept)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_lora_keeps_its_input_for_the_backward_and_a_few_numbers_a_token() -> None:
    layer = LoraLinear(nn.Linear(64, 64, bias=False), rank=4, scale=1.0)
    layer.weight.requires_grad_(False)
    kept: list[int] = []
    x = torch.randn(32, 64, requires_grad=True)
    own = {each.untyped_storage().data_ptr() for each in [*layer.parameters(), x]}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    assert kept == [32 * 4], "the rank's numbers of 32 tokens"


@pytest.fixture
def lora() -> LoraLinear:
    torch.manual_seed(0)
    layer = LoraLinear(nn.Linear(6, 5), rank=3, scale=0.5)
    layer.initialise(torch.Generator().manual_seed(1))
    return layer


def test_the_base_keeps_its_names_and_its_first_output(lora: LoraLinear) -> None:
    x = torch.randn(4, 6)
    assert [name for name, _ in lora.named_parameters()] == ["weight", "bias", "lora_A", "lora_B"]
    assert torch.equal(lora(x), functional.linear(x, lora.weight, lora.bias))
    assert lora.lora_A.abs().max() <= 6**-0.5


def test_a_copy_of_a_layer_is_a_layer_of_its_own(lora: LoraLinear) -> None:
    twin = copy.deepcopy(lora)
    with torch.no_grad():
        twin.weight.zero_()
    assert lora.weight.abs().sum() > 0
    assert torch.equal(twin(torch.ones(1, 6)), twin.bias[None])


def test_merging_changes_no_output_and_unmerging_gives_every_bit_back(lora: LoraLinear) -> None:
    with torch.no_grad():
        lora.lora_B.normal_()
    x, before = torch.randn(4, 6), {name: each.clone() for name, each in lora.named_parameters()}
    adapted = lora(x)
    lora.merge()
    torch.testing.assert_close(lora(x), adapted, rtol=1e-5, atol=1e-6)
    assert not torch.equal(lora.weight, before["weight"])
    lora.unmerge()
    assert all(torch.equal(each, before[name]) for name, each in lora.named_parameters())
    assert torch.equal(lora(x), adapted)


def test_fp32_maths_is_closer_to_the_exact_product_in_a_bf16_run() -> None:
    x, a, b = (each.detach().bfloat16() for each in tensors((64, 256), (8, 256), (64, 8)))
    layers = [
        LoraLinear(nn.Linear(256, 64, bias=False).bfloat16(), rank=8, scale=1.0, fp32=fp32) for fp32 in (True, False)
    ]
    exact = (x.double() @ a.double().mT) @ b.double().mT
    for layer in layers:
        with torch.no_grad():
            layer.weight.zero_()
            layer.lora_A.copy_(a)
            layer.lora_B.copy_(b)
    errors = [(layer(x).double() - exact).norm() for layer in layers]
    assert errors[0] < errors[1]


class TransposedLinear(StoredLinear):
    """A linear layer that stores its weight the other way round, as GPT-2's do."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight = nn.Parameter(base.weight.detach().T.clone())
        self.bias = nn.Parameter(base.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias

    def dense_weight(self) -> Tensor:
        return self.weight.detach().T.float().clone()

    def put_dense_weight(self, weight_FE: Tensor) -> None:
        with torch.no_grad():
            self.weight.copy_(weight_FE.T)


def test_a_base_that_stores_its_weight_transposed_is_adapted_and_merged_alike() -> None:
    base = nn.Linear(6, 5)
    plain, other = (LoraLinear(each, rank=3, scale=0.5) for each in (base, TransposedLinear(base)))
    for layer in (plain, other):
        layer.initialise(torch.Generator().manual_seed(1))
        with torch.no_grad():
            layer.lora_B.copy_(torch.ones(5, 3))
    x = torch.randn(4, 6)
    torch.testing.assert_close(other(x), plain(x), rtol=1e-6, atol=1e-6)
    for layer in (plain, other):
        layer.merge()
    torch.testing.assert_close(other.base_weight(), plain.base_weight(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(other(x), plain(x), rtol=1e-6, atol=1e-6)


class GatedLinear(AdaptedLinear):
    """Adds a term of its own to the loss: the sum of squares of its output."""

    def __init__(self, base: nn.Module, factor: LossFactor) -> None:
        super().__init__(base)
        self.gain, self.factor = self.new_parameter(self.out_features), factor

    def initialise(self, generator: Generator) -> None:
        self.gain.data.fill_(1.0)

    def adapted_output(self, x: Tensor) -> Tensor:
        out = self.base_output(x) * self.gain
        return with_loss(out, out.square().sum(), self.factor)


def test_a_term_of_a_layer_has_the_gradient_that_it_has_in_the_loss_itself() -> None:
    factor = LossFactor()
    factor.value = 0.25
    layer = GatedLinear(nn.Linear(6, 5), factor)
    layer.initialise(torch.Generator())
    x = torch.randn(4, 6)
    (layer(x).sum() * factor.value).backward()
    found = layer.gain.grad
    layer.gain.grad = None
    out = layer.base_output(x) * layer.gain
    ((out.sum() + out.square().sum()) * factor.value).backward()
    torch.testing.assert_close(found, layer.gain.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("options", "scale"), [({}, 2.0), ({"rslora": True}, 16 / 8**0.5), ({"alpha": 4.0}, 0.5)])
def test_the_scale_is_alpha_over_rank_or_its_root(options: dict[str, object], scale: float) -> None:
    assert LowRankConfig(**options).scale_of("model.layers.0.q_proj") == pytest.approx(scale)


def test_patterns_give_ranks_and_alphas_to_single_projections() -> None:
    config = LowRankConfig(ranks={"*.layers.0.*": 2, "q_proj": 4}, alphas={"q_proj": 8.0})
    assert [config.rank_of(f"model.layers.{i}.q_proj") for i in (0, 1)] == [2, 4]
    assert config.rank_of("model.layers.1.k_proj") == 8
    assert config.scale_of("model.layers.1.q_proj") == 2.0


def test_a_variant_without_a_forward_pass_is_told_which_method_it_lacks() -> None:
    class Unfinished(AdaptedLinear):
        def initialise(self, generator: torch.Generator) -> None: ...

    with pytest.raises(NotImplementedError, match=r"Unfinished defines no adapted_output\(x\)"):
        Unfinished(torch.nn.Linear(2, 2))(torch.zeros(1, 2))
