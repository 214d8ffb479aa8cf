"""Experts of a mixture: transformers' blocks, both forms, sorted rows, and what a rank without tokens of an expert has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from mt_core import ExpertLayout, RouterOptions
from mt_core.nn import Choice, Experts, ListedExperts, Router, clamped_swiglu, experts, geglu, swiglu

D, F, N = 16, 8, 9


def wide(module: nn.Module) -> Any:
    """Values that are far from 0, so that a wrong place is a wrong number."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return module


def tokens(count: int = N) -> Tensor:
    return torch.randn(1, count, D, generator=torch.Generator().manual_seed(1))


def outcome(run: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], x: Tensor | None = None) -> list[Tensor]:
    """The output, and the gradients of input and parameters."""
    x = (tokens() if x is None else x).requires_grad_(True)
    out = run(x)
    out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
    found = [out.detach(), *(each.grad for each in (x, *parameters) if each.grad is not None)]
    assert len(found) == len(parameters) + 2
    return found


def difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))


def qwen3_moe() -> tuple[nn.Module, nn.Module, RouterOptions, ExpertLayout, Any]:
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = Qwen3MoeConfig(
        hidden_size=D, moe_intermediate_size=F, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False
    )
    block = wide(Qwen3MoeSparseMoeBlock(config))
    return block, block.gate, RouterOptions(n_experts=6, top_k=2), ExpertLayout(n_experts=6, width=D, hidden=F), swiglu


def mixtral() -> tuple[nn.Module, nn.Module, RouterOptions, ExpertLayout, Any]:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=D, intermediate_size=F, num_local_experts=4, num_experts_per_tok=2, hidden_act="gelu_pytorch_tanh"
    )
    block = wide(MixtralSparseMoeBlock(config))
    options = RouterOptions(n_experts=4, top_k=2, normalise=True)
    return block, block.gate, options, ExpertLayout(n_experts=4, width=D, hidden=F), geglu


def gpt_oss() -> tuple[nn.Module, nn.Module, RouterOptions, ExpertLayout, Any]:
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    config = GptOssConfig(
        hidden_size=D, intermediate_size=F, num_local_experts=6, num_experts_per_tok=2, swiglu_limit=0.5
    )
    block = wide(GptOssMLP(config))
    options = RouterOptions(n_experts=6, top_k=2, order="choose-first", bias=True)
    layout = ExpertLayout(n_experts=6, width=D, hidden=F, interleaved=True, transposed=True, bias=True)
    return block, block.router, options, layout, partial(clamped_swiglu, limit=0.5)


def deepseek_v3() -> tuple[nn.Module, nn.Module, RouterOptions, ExpertLayout, Any]:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(
        hidden_size=D,
        moe_intermediate_size=F,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )
    block = wide(DeepseekV3MoE(config))
    options = RouterOptions(
        n_experts=8, top_k=3, gate="sigmoid", n_groups=4, top_groups=2, normalise=True, scale=2.5, choice_bias=True
    )
    return block, block.gate, options, ExpertLayout(n_experts=8, width=D, hidden=F), swiglu


def nemotron_h() -> tuple[nn.Module, nn.Module, RouterOptions, ExpertLayout, Any]:
    """Experts without a gate."""
    from transformers import NemotronHConfig
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMoE

    config = NemotronHConfig(
        hidden_size=D,
        moe_intermediate_size=F,
        moe_shared_expert_intermediate_size=F,
        n_routed_experts=4,
        num_experts_per_tok=2,
        routed_scaling_factor=2.5,
    )
    block = wide(NemotronHMoE(config))
    options = RouterOptions(n_experts=4, top_k=2, gate="sigmoid", normalise=True, scale=2.5, choice_bias=True)
    layout = ExpertLayout(n_experts=4, width=D, hidden=F, projections=("up_proj", "down_proj"))
    return block, block.gate, options, layout, block.experts.act_fn


BLOCKS = [qwen3_moe, mixtral, gpt_oss, deepseek_v3, nemotron_h]


@pytest.mark.parametrize("made", BLOCKS)
def test_a_block_gives_the_values_and_gradients_of_transformers(made: Callable[[], Any]) -> None:
    block, gate, options, layout, activation = made()
    router, fused = Router(options, D), Experts(layout, activation)
    router.load_state_dict(gate.state_dict())
    fused.load_state_dict(block.experts.state_dict())
    shared = getattr(block, "shared_experts", lambda x: 0)

    def theirs(x: Tensor) -> Tensor:
        out = block(x)
        return out[0] if isinstance(out, tuple) else out

    def ours(x: Tensor) -> Tensor:
        return fused(x[0], router(x[0]))[None] + shared(x)

    names = [name for name, each in router.named_parameters() if each.requires_grad]
    wanted = outcome(
        theirs,
        [
            *(getattr(gate, name) for name in names),
            *(getattr(block.experts, name) for name in dict(fused.named_parameters())),
        ],
    )
    found = outcome(ours, [*(getattr(router, name) for name in names), *fused.parameters()])
    assert difference(found, wanted) <= 1e-5


def test_both_ways_of_multiplying_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = wide(Experts(ExpertLayout(n_experts=6, width=D, hidden=F)))
    router = wide(Router(RouterOptions(n_experts=6, top_k=2), D))
    found = []
    for grouped in (True, False):
        fused.zero_grad()
        monkeypatch.setattr(experts, "_has_grouped_mm", lambda *given, runs=grouped: runs)
        found.append([each.clone() for each in outcome(lambda x: fused(x[0], router(x[0])), [*fused.parameters()])])
    assert difference(*found) <= 1e-6


FORMS = {
    "plain": {},
    "interleaved": {"interleaved": True, "transposed": True, "bias": True},
    "transposed": {"transposed": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_products_keep_what_their_rows_are_made_of_and_give_the_bits_of_kept_rows(
    form: str, dtype: torch.dtype
) -> None:
    """Beside torch's grouped product, whose rows autograd keeps. Kept: the input, what the activation reads, the outputs, the order."""
    layout = ExpertLayout(n_experts=6, width=D, hidden=F, **FORMS[form])
    fused = wide(Experts(layout)).to(dtype)
    x_ND = tokens(64)[0].to(dtype).requires_grad_()
    choice = wide(Router(RouterOptions(n_experts=6, top_k=2), D))(x_ND.detach().float())
    choice = Choice(choice.experts_NK, choice.weights_NK.detach().requires_grad_(), choice.probabilities_NX)
    order = experts.sort_by_expert(choice.experts_NK, 6)

    def product(rows: Tensor, name: str) -> Tensor:
        weight, bias = getattr(fused, name), getattr(fused, f"{name}_bias", None)
        out = functional.grouped_mm(rows, weight if layout.transposed else weight.mT, offs=order.ends_X)
        return out if bias is None else out + bias[experts.expert_of_rows(order.ends_X, len(rows))]

    def plain() -> Tensor:
        inner = product(experts.dispatch(x_ND, order), layout.inner)
        parts = (inner[:, ::2], inner[:, 1::2]) if layout.interleaved else inner.chunk(2, -1)
        return experts.combine(product(swiglu(*parts), "down_proj"), choice.weights_NK, order)

    wanted, grad_ND = [x_ND, choice.weights_NK, *fused.parameters()], tokens(64)[0].to(dtype)
    found, sizes = [], []
    for run in (plain, lambda: fused(x_ND, choice)):
        kept: dict[int, int] = {}
        with saved_tensors_hooks(
            lambda x, kept=kept: kept.update({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()}) or x,
            lambda x: x,
        ):
            out = run()
        own = {each.data_ptr() for each in fused.parameters()}
        sizes.append(sum(size for at, size in kept.items() if at not in own))
        found.append([out, *torch.autograd.grad(out, wanted, grad_ND)])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    rows = 2 * 64 * dtype.itemsize
    assert sizes[0] - sizes[1] == rows * (D + F) - 64 * D * dtype.itemsize  # rows and hidden values, for the input
    assert sizes[1] >= rows * (2 * F + D)


def test_rows_that_grouped_products_do_not_take_are_multiplied_all_the_same() -> None:
    """Rows of 3 numbers of fp32 are not a multiple of 16 bytes."""
    fused = wide(Experts(ExpertLayout(n_experts=3, width=D, hidden=3)))
    router = wide(Router(RouterOptions(n_experts=3, top_k=1), D))
    x_ND = tokens()[0]
    choice = router(x_ND)
    out_ND = fused(x_ND, choice)
    for x, expert, weight, out in zip(x_ND, choice.experts_NK[:, 0], choice.weights_NK[:, 0], out_ND, strict=True):
        gate, up = (fused.gate_up_proj[expert] @ x).chunk(2)
        assert torch.allclose(out, weight * (fused.down_proj[expert] @ (nn.functional.silu(gate) * up)), atol=1e-6)


def test_the_output_of_a_token_hangs_on_no_other_token() -> None:
    fused = wide(Experts(ExpertLayout(n_experts=6, width=D, hidden=F)))
    router = wide(Router(RouterOptions(n_experts=6, top_k=2), D))
    x_ND = tokens(40)[0]
    whole, alone = fused(x_ND, router(x_ND)), fused(x_ND[7:8], router(x_ND[7:8]))
    assert torch.allclose(whole[7:8], alone, atol=1e-6)


def test_an_expert_without_tokens_gets_a_gradient_of_zero_in_both_forms() -> None:
    layout = ExpertLayout(n_experts=4, width=D, hidden=F, bias=True)
    experts_NK = torch.tensor([[1], [3], [1]])
    choice = Choice(experts_NK, torch.ones(3, 1), torch.full((3, 4), 0.25))
    for form in (Experts(layout), ListedExperts(layout)):
        wide(form)(tokens(3)[0], choice).sum().backward()
        grads = [each.grad for each in form.parameters()]
        assert all(grad is not None and grad.isfinite().all() for grad in grads)
    unused = [form[expert].down_proj.weight.grad for expert in (0, 2)]
    assert [float(grad.abs().sum()) for grad in unused] == [0, 0]
    assert float(form[1].down_proj.weight.grad.abs().sum()) > 0


def test_outputs_are_added_up_in_fp32_and_returned_in_the_dtype_of_the_input() -> None:
    """Sums of three bf16 numbers of which the first two nearly cancel: each addition in bf16 would round."""
    layout = ExpertLayout(n_experts=3, width=8, hidden=8)
    fused = Experts(layout).bfloat16()
    with torch.no_grad():
        for each in fused.parameters():
            each.copy_(torch.eye(8).repeat(3, 2 if len(each[0]) == 16 else 1, 1))
        fused.down_proj[1] *= -1
        fused.down_proj[2] *= 1 / 256
    choice = Choice(torch.tensor([[0, 2, 1]]), torch.ones(1, 3), torch.ones(1, 3))
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    out = fused(x, choice)
    one = nn.functional.silu(x)
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out, one / 256, rtol=1e-2)


def test_a_router_scores_in_fp32() -> None:
    """In bf16 both experts have the same score, 256."""
    router = Router(RouterOptions(n_experts=2, top_k=1), 2).bfloat16()
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[256.0, 0.0], [256.0, 0.5]]))
    choice = router(torch.ones(1, 2, dtype=torch.bfloat16))
    assert choice.experts_NK.item() == 1
    assert choice.weights_NK.dtype == torch.float32


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"top_k": 9}, "top_k=9 of n_experts=8"),
        ({"n_groups": 3}, "n_groups=3 does not divide n_experts=8"),
        ({"n_groups": 4, "top_groups": 5}, "top_groups=5 of n_groups=4"),
        ({"n_groups": 4, "top_groups": 1, "top_k": 3}, "top_k=3 experts of 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RouterOptions(**{"n_experts": 8, "top_k": 2, **sizes})
