"""LoRA-DA against the paper's formulas in float64, with its Fisher matrix written out whole."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import TINY
from given_probe import Chain, GivenProbe, falling_matrix, put
from peft_layers import assert_close, check_start_and_merge, compare_with_lora

from mt_conformance.weights import fill_weights
from mt_core import Sample
from mt_core.nn import NOT_TRAINED, Batch, TokenObjective
from mt_core.nn.collation import collate, flatten
from mt_plugin_adapters.variants.lora_da import COMPONENT
from mt_plugin_adapters.variants.lora_da.config import LoraDaConfig
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.assemble.probe import ModelProbe

SMALL: dict = {"rank": 4, "alpha": 8.0, "tokens": 1000}
EXACT_WITHIN: float = 0.1  # the first step of a natural gradient is in A and B
LAYOUTS_WITHIN: float = 1e-5  # eigenvectors with neighbouring eigenvalues enlarge the rounding of what is found
WIDTHS = (10, 8, 12)
Found = dict[str, Tensor]


def chain(**options: object) -> tuple[Chain, Found, Found, Found]:
    """A chain that has begun, and the gradients, moments and squares that it was given."""
    model, generator = Chain(*WIDTHS), torch.Generator().manual_seed(6)
    gradients = {f"blocks.{i}.weight": falling_matrix(block, 0.8, i) for i, block in enumerate(model.blocks)}
    moments, squares = {}, {}
    for i, block in enumerate(model.blocks):
        x = torch.randn(40, block.in_features, generator=generator).double() * torch.linspace(0.3, 2, block.in_features)
        moments[f"blocks.{i}"] = x.T @ x / 40
        squares[f"blocks.{i}"] = torch.rand(block.out_features, generator=generator).double() + 0.1
    adapter = COMPONENT.build(LoraDaConfig(**{**SMALL, **options}))
    adapter.prepare(model, GivenProbe(gradients=gradients, moments=moments, squares=squares))
    put(adapter, model)
    return model, gradients, moments, squares


@pytest.mark.parametrize("variance", [0.0, 1.0, 30.0])
def test_it_begins_as_the_projection_of_the_natural_gradient_that_the_guidance_matrix_chooses(variance: float) -> None:
    """J = Y ⊗ Z over all numbers of the weight; D = -J⁻¹ vec(G); Ω = β/N Σ_j J⁻¹_[j] - Σ_j D_j D_jᵀ, D and Ω over σ_max(D)."""
    model, *found = chain(gamma=3.0, variance=variance)
    for block, gradient, z, y in zip(model.blocks, *(each.values() for each in found), strict=True):
        inputs, outputs = block.in_features, block.out_features
        z, y = z + 1e-3 * z.diagonal().mean() * torch.eye(inputs), y + 1e-3 * y.mean()
        inverse = torch.linalg.inv(torch.kron(y.diag(), z))
        step = -(inverse @ gradient.double().reshape(-1)).view(outputs, inputs)
        largest = torch.linalg.svdvals(step)[0]
        guide = torch.zeros(inputs, inputs, dtype=torch.float64)
        for j in range(outputs):
            here = slice(j * inputs, (j + 1) * inputs)
            guide += (variance / 1000 * inverse[here, here] - torch.outer(step[j], step[j])) / largest**2
        values, vectors = torch.linalg.eigh(guide)
        chosen = vectors[:, :4]
        a, b = block.lora_A.double(), block.lora_B.double()
        assert_close(a.T @ a * 3.0, chosen @ chosen.T, 1e-5)
        assert_close(a @ a.T * 3.0, torch.eye(4, dtype=torch.float64), 1e-5)
        assert_close(b @ a * 3.0, step / largest @ chosen @ chosen.T, 1e-5)
        assert values[4] - values[3] > 1e-3 * values.abs().max(), "the choice is a clear one"


def test_without_uncertainty_and_with_equal_factors_it_is_the_gradients_own_subspace() -> None:
    """The paper's remark 4.3: LoRA-One's, whose update is the best matrix of its rank."""
    model, block = Chain(10, 8), Chain(10, 8).blocks[0]
    gradient = falling_matrix(block, 0.8, 0)
    adapter = COMPONENT.build(LoraDaConfig(**{**SMALL, "gamma": 1.0, "variance": 0.0, "damping": 1e-9}))
    given = {"moments": {"blocks.0": torch.eye(10).double()}, "squares": {"blocks.0": torch.ones(8).double()}}
    adapter.prepare(model, GivenProbe(gradients={"blocks.0.weight": gradient}, **given))
    put(adapter, model)
    u, s, v = torch.linalg.svd(-gradient)
    assert_close(model.blocks[0].lora_B @ model.blocks[0].lora_A, u[:, :4] * (s[:4] / s[0]) @ v[:4])


def test_uncertainty_moves_the_choice_towards_inputs_that_are_seen_often() -> None:
    shares = []
    for variance in (0.0, 1e6):
        model, _, moments, _ = chain(variance=variance)
        block, z = model.blocks[0], moments["blocks.0"]
        rows = block.lora_A.detach().double()
        rows /= rows.norm(dim=1, keepdim=True)
        shares.append(float((rows @ z * rows).sum() / torch.linalg.eigvalsh(z)[-4:].sum()))
    assert shares[1] > 0.99 > shares[0]


def test_a_layer_that_no_row_has_reached_begins_as_loras() -> None:
    """Without a gradient there is no step, and its length of 0 divides nothing."""
    model, adapter = Chain(10, 8), COMPONENT.build(LoraDaConfig(**SMALL))
    given = {"moments": {"blocks.0": torch.eye(10).double()}, "squares": {"blocks.0": torch.zeros(8).double()}}
    adapter.prepare(model, GivenProbe(gradients={"blocks.0.weight": torch.zeros(8, 10)}, **given))
    put(adapter, model)
    x = torch.randn(5, 10)
    assert torch.equal(model(x), Chain(10, 8)(x))
    model(x).sum().backward()
    assert model.blocks[0].lora_B.grad.any()


def test_output_gradients_and_merged_weight_are_those_of_pefts_lora() -> None:
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        compare_with_lora(block, base, rank=4, alpha=8.0)


def test_it_begins_a_step_away_from_the_base_and_merges_and_unmerges() -> None:
    """s/γ = 2/1024 of a matrix whose largest singular value is 1."""
    for block, base in zip(chain()[0].blocks, Chain(*WIDTHS).blocks, strict=True):
        assert torch.equal(block.weight, base.weight)
        check_start_and_merge(block, base, first=1e-2)


def batch(length: int, *rows: int) -> Batch:
    """Some of three rows of which some tokens are trained, padded to this length."""
    generator, all_rows = torch.Generator().manual_seed(4), []
    for size in (5, 9, 7):
        ids = torch.randint(3, 259, (size,), generator=generator).tolist()
        all_rows.append([Sample(ids, [number > 1 for number in range(size)], "")])
    return collate(flatten([all_rows[row] for row in rows]), length=length, pad_id=0)


def squares(model: Llama, names: list[str], *batches: Batch) -> Found:
    """What the core's probe finds on these micro-batches of one step."""
    loader = SimpleNamespace(windows=lambda position: iter([SimpleNamespace(batches=batches)]))
    process = SimpleNamespace(device=torch.device("cpu"), world=1)
    return ModelProbe(model, TokenObjective(), loader, process).output_squares(names, steps=1)


def test_the_probe_means_squares_of_the_gradients_of_outputs_over_trained_tokens() -> None:
    """Against autograd; padding, and the division into micro-batches, change nothing, and the model is left as it was."""
    model, rows = fill_weights(Llama(LlamaConfig(**TINY, max_seq_len=32))), batch(9, 0, 1, 2)
    names, kept = ["model.layers.0.self_attn.v_proj", "model.layers.1.mlp.down_proj"], []
    before = {name: each.requires_grad for name, each in model.named_parameters()}
    found = squares(model, names, rows)
    assert before == {name: each.requires_grad for name, each in model.named_parameters()}
    assert not any(module._forward_hooks for module in model.modules())

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kept.append(output)
        output.retain_grad()

    hooks = [model.get_submodule(name).register_forward_hook(keep) for name in names]
    TokenObjective().loss(model(rows), model.head, rows).loss_sum.backward()
    for hook in hooks:
        hook.remove()
    for name, output in zip(names, kept, strict=True):
        assert_close(found[name], output.grad[rows.labels != NOT_TRAINED].double().square().mean(0))
    divided = squares(model, names, batch(20, 1), batch(8, 0, 2))
    for name in names:
        assert_close(divided[name], found[name])
