"""Fused operations have the value and the gradient of their plain form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._decomp import get_decompositions
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from mt_core.nn import GatedMLP, RMSNorm, fused, geglu, project_gated, swiglu


@pytest.mark.parametrize(("centred", "rounds_last"), [(False, False), (True, False), (False, True)])
def test_rms_norm_equals_torchs_in_float64(centred: bool, rounds_last: bool) -> None:
    """float32 rounding is 6e-8; sums over 48 numbers make it some 1e-6."""
    torch.manual_seed(0)
    norm, x = RMSNorm(48, eps=1e-5, centred=centred, rounds_last=rounds_last), torch.randn(2, 7, 48, requires_grad=True)
    grad = torch.randn(2, 7, 48)
    assert torch.equal(norm.weight, torch.zeros(48) if centred else torch.ones(48))
    with torch.no_grad():
        norm.weight.normal_()
    norm(x).backward(grad)
    x64, weight64 = x.detach().double().requires_grad_(), norm.weight.detach().double().requires_grad_()
    expected = F.rms_norm(x64, (48,), weight64 + 1 if centred else weight64, 1e-5)
    expected.backward(grad.double())
    torch.testing.assert_close(norm(x).double(), expected, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(x.grad.double(), x64.grad, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(norm.weight.grad.double(), weight64.grad, atol=4e-6, rtol=4e-6)


def test_rms_norm_keeps_bf16_inputs_in_bf16_and_computes_in_fp32() -> None:
    norm, x = RMSNorm(32, eps=1e-6).bfloat16(), torch.randn(3, 5, 32).bfloat16()
    expected = F.rms_norm(x.float(), (32,), None, 1e-6).bfloat16()
    assert norm(x).dtype == torch.bfloat16
    assert torch.equal(norm(x), expected)


def test_a_centred_norm_rounds_to_bf16_after_scaling() -> None:
    norm, x = RMSNorm(32, eps=1e-6, centred=True).bfloat16(), torch.randn(3, 5, 32).bfloat16()
    with torch.no_grad():
        norm.weight.normal_()
    expected = F.rms_norm(x.float(), (32,), 1 + norm.weight.float(), 1e-6).bfloat16()
    assert torch.equal(norm(x), expected)


def test_a_norm_that_rounds_last_rounds_to_bf16_after_scaling() -> None:
    norm, x = RMSNorm(32, eps=1e-6, rounds_last=True).bfloat16(), torch.randn(3, 5, 32).bfloat16()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    expected = F.rms_norm(x.float(), (32,), norm.weight.float(), 1e-6).bfloat16()
    assert torch.equal(norm(x), expected)


def test_geglu_equals_its_plain_form() -> None:
    gate, up = (torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(geglu(gate, up), F.gelu(gate, approximate="tanh") * up)
    assert torch.autograd.gradcheck(geglu, (gate, up))


def test_swiglu_equals_its_plain_form() -> None:
    gate, up = (torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(swiglu(gate, up), F.silu(gate) * up)
    assert torch.autograd.gradcheck(swiglu, (gate, up))


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_norm_weight_gets_no_gradient(frozen: bool) -> None:
    norm, x = RMSNorm(8), torch.randn(1, 2, 8, requires_grad=True)
    norm.weight.requires_grad_(not frozen)
    norm(x).sum().backward()
    assert (norm.weight.grad is None) == frozen


@pytest.mark.parametrize("centred", [False, True])
def test_without_gradients_the_bits_are_the_same(centred: bool) -> None:
    norm, x, up = RMSNorm(16, centred=centred), torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    for operation in (norm, lambda each: swiglu(each, up), lambda each: geglu(each, up)):
        with torch.no_grad():
            found = operation(x)
        assert torch.equal(found, operation(x))


def compiled_outputs(function: Callable[..., Tensor], *inputs: Tensor) -> list[fx.Node]:
    """Return the nodes that make the outputs of each ``autograd.Function``, in the graph that torch's compiler traces of a call."""
    found: list[fx.Node] = []

    def note(graph: fx.GraphModule, example_inputs: Any) -> fx.GraphModule:
        for name, part in graph.named_children():
            if name.startswith("fwd_body") and isinstance(part, fx.GraphModule):
                outputs, _ = part.graph.output_node().args[0]  # type: ignore[misc]
                found.extend(outputs)  # type: ignore[arg-type]
        return graph

    torch._dynamo.reset()
    torch.compile(function, backend=note, fullgraph=True)(*inputs)
    assert found, "the compiler traced no Function"
    return found


@pytest.mark.parametrize(
    "function",
    [swiglu, geglu, *(RMSNorm(8, centred=one, rounds_last=other) for one, other in ((0, 0), (1, 0), (0, 1)))],
    ids=["swiglu", "geglu", "norm", "centred norm", "norm that rounds last"],
)
def test_an_output_shares_no_memory_with_what_was_computed_before_when_it_is_compiled(
    function: Callable[..., Tensor],
) -> None:
    """The compiler of torch 2.11 gives such outputs no gradient, without a word: neither a result in place nor a cast to the same type."""
    inputs = [torch.randn(3, 8, requires_grad=True) for _ in range(1 if isinstance(function, RMSNorm) else 2)]
    for node in compiled_outputs(function, *inputs):
        name = str(node.target)
        assert not (node.op == "call_method" and (name.endswith("_") or name == "to")), f"the output is made by {name}"


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("rounds_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_by_torchs_kernel_equals_the_one_without(
    dtype: torch.dtype, rounds_last: bool, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the formulas that torch has for its kernels where there is no GPU. To bf16's 8 bits, or fp32's over sums of 64."""
    torch.manual_seed(0)
    norm, x = RMSNorm(64, eps=1e-5, rounds_last=rounds_last).to(dtype), torch.randn(2, 7, 64).to(dtype).requires_grad_()
    norm.weight.data.normal_()
    norm.weight.requires_grad_(not frozen)
    wanted = [x] if frozen else [x, norm.weight]
    grad, found = torch.randn(2, 7, 64).to(dtype), []
    backward = torch.ops.aten._fused_rms_norm_backward
    for by_kernel in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(fused, "_has_kernel", lambda *given, has=by_kernel: has)
            patch.setattr(torch.ops.aten, "_fused_rms_norm_backward", get_decompositions([backward])[backward.default])
            out = norm(x)
            found.append([out, *torch.autograd.grad(out, wanted, grad)])
    for plain, kernel in zip(*found, strict=True):
        assert plain.dtype == kernel.dtype
        torch.testing.assert_close(
            kernel,
            plain,
            rtol=2e-2 if dtype == torch.bfloat16 else 2e-5,
            atol=2e-2 if dtype == torch.bfloat16 else 2e-6,
        )


def products(down: nn.Module, gate: Callable[[Tensor, Tensor], Tensor], *, plain: bool) -> tuple[list[Tensor], int]:
    """The output of a gated MLP's second half and all gradients, and the bytes that it keeps, weights apart."""
    torch.manual_seed(0)
    dtype = next(down.parameters()).dtype
    inputs = [torch.randn(2, 5, 24).to(dtype).requires_grad_() for _ in range(2)]
    kept: dict[int, int] = {}
    own = {each.data_ptr() for each in down.parameters()}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        out = down(gate(*inputs)) if plain else project_gated(down, *inputs, gate)
    wanted = [*inputs, *(each for each in down.parameters() if each.requires_grad)]
    grads = torch.autograd.grad(out, wanted, torch.randn(out.shape).to(dtype))
    return [out, *grads], sum(size for at, size in kept.items() if at not in own)


@pytest.mark.parametrize("gate", [swiglu, geglu])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_projected_gate_keeps_its_inputs_alone_and_gives_the_bits_of_its_parts(
    gate: Callable[[Tensor, Tensor], Tensor], bias: bool, dtype: torch.dtype
) -> None:
    down = nn.Linear(24, 16, bias=bias).to(dtype)
    (found, kept), (expected, more) = (products(down, gate, plain=plain) for plain in (False, True))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    size = 2 * 5 * 24 * dtype.itemsize
    assert (kept, more) == (2 * size, 3 * size)


@pytest.mark.parametrize(
    "reason", ["frozen", "hooked", "another activation", "another layer", "another forward", "no gradients"]
)
def test_a_layer_that_has_to_be_called_is_called(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen one keeps nothing of its input anyway; hooks gather weights; a layer of another kind has a forward of its own."""

    class Doubling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    monkeypatch.setattr(fused, "_ProjectGated", None)
    down = (Doubling if reason == "another layer" else nn.Linear)(24, 16)
    if reason == "frozen":
        down.weight.requires_grad_(False)
    if reason == "hooked":
        down.register_forward_hook(lambda module, given, out: 3 * out)
    if reason == "another forward":
        forward = down.forward
        down.forward = lambda x: 4 * forward(x)  # type: ignore[method-assign]
    gate = torch.mul if reason == "another activation" else swiglu
    inputs = [torch.randn(3, 24, requires_grad=True) for _ in range(2)]
    with torch.set_grad_enabled(reason != "no gradients"):
        assert torch.equal(project_gated(down, *inputs, gate), down(gate(*inputs)))


@pytest.mark.parametrize("merged", [False, True])
def test_a_gated_mlp_that_is_trained_keeps_what_it_multiplies_and_no_hidden_values(merged: bool) -> None:
    mlp, kept = GatedMLP(8, 24, fused=merged), {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    x = torch.randn(2, 5, 8, requires_grad=True)
    with saved_tensors_hooks(pack, lambda x: x):
        mlp(x)
    own = {each.data_ptr() for each in mlp.parameters()}
    assert sum(size for at, size in kept.items() if at not in own) == 4 * 2 * 5 * (8 + 24 + 24)
