"""Quantized layers against bitsandbytes' own, and adapters over them against adapters over what they hold."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant, int8_vectorwise_quant, quantize_4bit
from torch import Tensor, nn
from torch.nn import functional

from mt_core import UsageError, WeightsError
from mt_core.adapters import LoraLinear
from mt_core.nn import Batch, TrainModel
from mt_plugin_quantizers.config import FourBitConfig, QuantizerConfig
from mt_plugin_quantizers.layers import FourBitLinear, Int8Linear, QuantizedLinear, Quantizer, four_bit, int8
from mt_train.engine.build import build_quantized, fill_model, weight_names
from mt_train.engine.processes import Process

SHAPE = {"vocab_size": 64, "dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 96, "max_seq_len": 32}
CPU = torch.device("cpu")


def four(kind: Any, double: bool, linear: nn.Linear) -> FourBitLinear:
    return FourBitLinear(linear, kind=kind, block_size=64, double=double)


LAYERS = {
    "nf4": lambda linear: four("nf4", True, linear),
    "nf4 single": lambda linear: four("nf4", False, linear),
    "fp4": lambda linear: four("fp4", True, linear),
    "int8": Int8Linear,
}


def theirs(name: str, weight_FE: Tensor) -> Tensor:
    """bitsandbytes' own way there and back."""
    if name == "int8":
        bits, scales, _ = int8_vectorwise_quant(weight_FE.half())
        return int8_vectorwise_dequant(bits, scales).float()
    double = name != "nf4 single"
    bits, state = quantize_4bit(weight_FE, blocksize=64, quant_type=name[:3], compress_statistics=double)
    return dequantize_4bit(bits, state)  # type: ignore[no-any-return]


@pytest.fixture(params=LAYERS)
def pair(request: pytest.FixtureRequest) -> tuple[QuantizedLinear, nn.Linear]:
    """A quantized layer, and a dense one with the weight that it holds."""
    torch.manual_seed(0)
    dense = nn.Linear(96, 64)
    layer = LAYERS[request.param](dense)
    layer.put_dense_weight(dense.weight.detach())
    expected = theirs(request.param, dense.weight.detach())
    assert torch.equal(layer.dense_weight(), expected)
    with torch.no_grad():
        dense.weight.copy_(expected)
    dense.weight.requires_grad_(False)
    return layer, dense


def test_outputs_and_input_gradients_are_those_of_the_dequantized_weight(
    pair: tuple[QuantizedLinear, nn.Linear],
) -> None:
    layer, dense = pair
    x = torch.randn(2, 5, 96, requires_grad=True)
    assert torch.equal(layer(x), functional.linear(x, dense.weight) + dense.bias)
    ours, expected = (torch.autograd.grad(each(x).square().sum(), x)[0] for each in (layer, dense))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_int8_refuses_a_weight_that_is_beyond_fp16_and_takes_any_input() -> None:
    """bitsandbytes quantizes in fp16 too, and gives NaN for the whole row there."""
    layer, weight_FE = Int8Linear(nn.Linear(96, 64)), torch.ones(64, 96)
    layer.put_dense_weight(weight_FE * 65504)
    assert layer(torch.full((3, 96), 1e30, dtype=torch.bfloat16)).isfinite().all()
    weight_FE[3, 5] = 1e5
    assert theirs("int8", weight_FE)[3].isnan().all()
    with pytest.raises(WeightsError, match=r"a weight of 1e\+05 is beyond fp16"):
        layer.put_dense_weight(weight_FE)


def test_casting_the_model_to_half_precision_leaves_every_statistic(pair: tuple[QuantizedLinear, nn.Linear]) -> None:
    layer, _ = pair
    before = layer.dense_weight()
    layer.bfloat16()
    assert torch.equal(layer.dense_weight(), before)
    assert layer(torch.randn(3, 96).bfloat16()).dtype == torch.bfloat16


def test_under_an_adapter_it_follows_its_input_to_another_device(
    pair: tuple[QuantizedLinear, nn.Linear], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No child of the model, it is not moved by ``.to``. Values are never given up for ``meta``."""
    moves: list[torch.device] = []
    monkeypatch.setattr(QuantizedLinear, "to", lambda layer, device: moves.append(device))
    layer, seen = LoraLinear(pair[0], rank=4, scale=0.5), []
    monkeypatch.setattr(QuantizedLinear, "follow", lambda layer, device: seen.append(device))
    layer(torch.zeros(3, 96))
    assert seen == [torch.device("cpu")]
    monkeypatch.undo()
    monkeypatch.setattr(QuantizedLinear, "to", lambda layer, device: moves.append(device))
    for device in ("cpu", "meta", "cuda:1"):
        pair[0].follow(torch.device(device))
    assert moves == [torch.device("cuda:1")]


def test_lora_over_it_is_lora_over_the_weight_that_it_holds(pair: tuple[QuantizedLinear, nn.Linear]) -> None:
    layers = [LoraLinear(each, rank=4, scale=0.5) for each in pair]
    for layer in layers:
        layer.initialise(torch.Generator().manual_seed(1))
        with torch.no_grad():
            layer.lora_B.copy_(torch.linspace(-1, 1, 256).view(64, 4))
    x = torch.randn(5, 96)
    gradients = []
    for layer in layers:
        layer(x).square().sum().backward()
        gradients.append((layer.lora_A.grad, layer.lora_B.grad))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-4)


def test_a_quantized_layer_that_is_asked_to_merge_says_where_to_merge(pair: tuple[QuantizedLinear, nn.Linear]) -> None:
    layer = LoraLinear(pair[0], rank=4, scale=0.5)
    with pytest.raises(UsageError, match=r"stores its weight in fewer bits.*mt-export --merge"):
        layer.merge()


@pytest.mark.parametrize(("name", "most"), [("nf4", 4.2), ("fp4", 4.2), ("nf4 single", 4.51), ("int8", 8.1)])
def test_a_weight_takes_the_bits_that_the_paper_says(name: str, most: float) -> None:
    """4 + 8/64 + 32/(64 · 256) with double quantization (QLoRA, section 3); 4 + 32/64 without."""
    layer = LAYERS[name](nn.Linear(512, 1024, bias=False))
    assert sum(each.numel() * each.element_size() for each in layer.buffers()) * 8 / (512 * 1024) <= most


# --------------------------------------------------------------------------------------------------------- whole models


def build(quantizer: Quantizer | None, **shape: Any) -> TrainModel:
    from mt_plugin_llama.config import LlamaConfig
    from mt_plugin_llama.model import Llama

    def make() -> TrainModel:
        return Llama(LlamaConfig(**{**SHAPE, **shape}))

    model = make() if quantizer is None else build_quantized(make, quantizer, CPU)
    fill_model(model, {}, seed=1, process=Process(0, 1, 0, CPU))
    return model


def batch() -> Batch:
    ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))
    positions, documents = torch.arange(16).expand(2, 16), torch.zeros(2, 16, dtype=torch.long)
    return Batch(
        input_ids=ids, labels=ids, positions=positions, document_ids=documents, weights=None, row_ids=(), extras={}
    )


@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_a_model_are_those_of_bitsandbytes_own_dequantized_weights(tied: bool) -> None:
    """Norms, embedding and head stay as they are. 1e-3 is what is promised; the same products give 1e-6."""
    quantized = build(four_bit(FourBitConfig(), "nf4"), tie_embeddings=tied)
    dense = build(None, tie_embeddings=tied)
    assert sorted(weight_names(quantized)) == sorted(name for name, _ in dense.named_parameters())
    with torch.no_grad():
        for name, module in dense.named_modules():
            if isinstance(module, nn.Linear) and name != "lm_head":
                module.weight.copy_(theirs("nf4", module.weight))
        ours, expected = (model.head(model(batch())) for model in (quantized, dense))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_targets_and_exclusions_choose_what_is_quantized() -> None:
    model = build(int8(QuantizerConfig(targets=("*_proj",), exclude=("down_proj", "*.layers.1.*"))))
    found = [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]
    assert len(found) == 6
    assert all(".0." in name and "down" not in name for name in found)
    with pytest.raises(UsageError, match=r"^quantizer.exclude: 'down' names none"):
        build(int8(QuantizerConfig(exclude=("down",))))


def test_no_more_than_one_dense_weight_is_alive_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the forward and the backward of a whole model."""
    model = build(four_bit(FourBitConfig(), "nf4"))
    alive: list[weakref.ref[Tensor]] = []
    most = [0]
    taken_out = FourBitLinear.weight_in

    def counted(layer: FourBitLinear, dtype: torch.dtype) -> Tensor:
        weight = taken_out(layer, dtype)
        alive.append(weakref.ref(weight))
        most[0] = max(most[0], sum(each() is not None for each in alive))
        return weight

    monkeypatch.setattr(FourBitLinear, "weight_in", counted)
    gc.collect()
    hidden = model(batch())
    hidden.square().sum().backward()
    assert len(alive) == 2 * 14
    assert most[0] == 1
