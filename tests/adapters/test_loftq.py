"""LoftQ over bitsandbytes' NF4, against peft's decomposition."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from peft.utils.loftq_utils import _low_rank_decomposition
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, linear, place, start
from tiny_model import SHAPE

from mt_core import LowRankConfig
from mt_plugin_adapters.variants.loftq import COMPONENT
from mt_plugin_adapters.variants.loftq.layer import LoftqLinear
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_plugin_quantizers.config import FourBitConfig
from mt_plugin_quantizers.layers import FourBitLinear, four_bit
from mt_train.engine.build import build_quantized, fill_model, stored_layers
from mt_train.engine.processes import Process

SMALL: dict = {"rank": 4, "alpha": 8.0}
EXACT_WITHIN = 0.4
"""Over a quantized base; a small random model's few logits change much by the correction of what NF4 has lost."""
INPUTS, OUTPUTS = 64, 32


def store() -> tuple[FourBitLinear, Tensor]:
    """A layer in NF4, and its weight as it was."""
    plain = linear(INPUTS, OUTPUTS)
    weight = plain.weight.detach().clone()
    layer = FourBitLinear(plain, kind="nf4", block_size=64, double=False)
    layer.put_dense_weight(weight)
    layer.original = weight.clone
    return layer, weight


def layer(base: torch.nn.Module, **options: object) -> LoftqLinear:
    return start(COMPONENT.build(LowRankConfig(**{**SMALL, **options})).layer(base, place()))


def test_it_begins_as_pefts_does_with_one_step() -> None:
    """peft knows no scale here: it takes alpha = rank."""
    base, weight = store()
    packed, state = quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=False)
    quantized = dequantize_4bit(packed, state)
    theirs = _low_rank_decomposition(weight - quantized, reduced_rank=4)
    ours = layer(base, alpha=4.0)
    assert_close(ours.base_weight(), quantized)
    assert_close(ours.delta_weight(), theirs["L"] @ theirs["R"])
    assert_close(ours.lora_A.norm(dim=1), theirs["R"].norm(dim=1))
    assert_close(ours.lora_B.norm(dim=0), theirs["L"].norm(dim=0))


def test_the_error_that_is_left_is_that_of_the_best_approximation_whatever_the_scale() -> None:
    """Eckart and Young: the singular values beyond the rank."""
    base, weight = store()
    ours = layer(base)
    values = torch.linalg.svdvals((weight - ours.base_weight()).double())
    left = (weight - ours.merged_weight()).double()
    assert_close(left.norm(), values[4:].norm())
    assert left.norm() < 0.9 * values.norm()


def test_the_first_output_is_nearer_to_the_weights_than_the_quantized_bases_is() -> None:
    base, weight = store()
    ours, x = layer(base), torch.randn(50, INPUTS, generator=torch.Generator().manual_seed(3))
    expected = x @ weight.T + base.bias
    assert (ours(x) - expected).norm() < 0.9 * (base(x) - expected).norm()


def test_a_layer_that_is_not_quantized_begins_as_lora() -> None:
    ours = layer(linear())
    assert torch.count_nonzero(ours.lora_B) == 0
    assert torch.count_nonzero(ours.lora_A) == ours.lora_A.numel()


def test_a_quantized_model_can_read_its_weights_again_until_the_adapter_has_begun() -> None:
    model = build_quantized(
        lambda: Llama(LlamaConfig(**SHAPE)), four_bit(FourBitConfig(block_size=64), "nf4"), torch.device("cpu")
    )
    name = "model.layers.0.self_attn.q_proj"
    weight = torch.randn(32, 32)
    fill_model(model, {f"{name}.weight": lambda: weight}, seed=0, process=Process(0, 1, 0, torch.device("cpu")))
    found = dict(stored_layers(model))
    assert torch.equal(found[name].original(), weight)
    assert all(each.original is not None for each in found.values())
