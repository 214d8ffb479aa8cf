"""OFT against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import OFTConfig
from peft.tuners.oft.layer import Linear as PeftOft

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, compare, linear, move, place, start
from tiny_model import SHAPE, inject

from mt_core import UsageError
from mt_core.adapters import adapted_layers
from mt_plugin_adapters.rotations import block_product
from mt_plugin_adapters.variants.oft import COMPONENT
from mt_plugin_adapters.variants.oft.config import OftConfig
from mt_plugin_adapters.variants.oft.layer import USUAL, OftLinear, common_divisor, nearest_divisor
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama

SMALL: dict = {"block_size": 8}


def layer(bias: bool = True, **options: object) -> OftLinear:
    return start(COMPONENT.build(OftConfig(**SMALL, **options)).layer(linear(bias=bias), place()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("terms", [None, 4, 5, 7])
def test_output_gradients_and_merged_weight_equal_pefts(bias: bool, shared: bool, terms: int | None) -> None:
    series = {"use_cayley_neumann": False} if terms is None else {"num_cayley_neumann_terms": terms}
    config = OFTConfig(r=0, oft_block_size=8, block_share=shared, **series)
    theirs = PeftOft(copy.deepcopy(linear(bias=bias)), "default", r=0, config=config)
    ours = move(layer(bias, shared_blocks=shared, neumann_terms=terms), 0.1)
    compare(ours, theirs, {"oft_R": theirs.oft_R["default"].weight})


@pytest.mark.parametrize("terms", [None, 5])
def test_it_begins_as_the_base_and_merges_and_unmerges(terms: int | None) -> None:
    check_start_and_merge(layer(neumann_terms=terms), linear())


def test_rows_keep_their_lengths_and_angles() -> None:
    ours, base = move(layer()), linear()
    merged = ours.merged_weight()
    assert ((merged - base.weight).norm() / base.weight.norm()) > 0.3
    assert_close(merged @ merged.T, base.weight @ base.weight.T)


def test_a_block_that_does_not_divide_the_inputs_is_refused() -> None:
    with pytest.raises(UsageError, match="5 does not divide the 24 inputs of"):
        COMPONENT.build(OftConfig(block_size=5)).layer(linear(), place())


def test_in_half_precision_it_begins_as_the_base_to_the_bit() -> None:
    base = linear().bfloat16()
    ours = start(COMPONENT.build(OftConfig(**SMALL)).layer(copy.deepcopy(base), place()))
    x = torch.randn(3, 24, dtype=torch.bfloat16)
    assert torch.equal(ours(x), base(x))


@pytest.mark.parametrize("blocks", [1, 4])
def test_the_product_keeps_rows_and_blocks_and_no_copy_of_the_blocks_for_each_row(blocks: int) -> None:
    x, blocks_NKK = torch.randn(2, 50, 32).requires_grad_(), torch.randn(blocks, 8, 8).requires_grad_()
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = block_product(x, blocks_NKK)
    assert_close(out, x @ torch.block_diag(*blocks_NKK.expand(4, 8, 8)))
    assert sum(kept.values()) <= 4 * (x.numel() + blocks_NKK.numel())


@pytest.mark.parametrize(("inputs", "size"), [((128, 336), 16), ((64, 96), 32), ((24, 36), 12), ((62,), 31)])
def test_without_options_a_block_is_the_largest_that_divides_all_inputs(inputs: tuple[int, ...], size: int) -> None:
    """Up to 32: the numbers are found by trying them all."""
    assert max(each for each in range(1, 33) if not any(count % each for count in inputs)) == size
    assert common_divisor(inputs, USUAL) == size


def test_without_options_it_says_which_size_it_takes_and_refuses_inputs_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, _ = inject(COMPONENT.build(OftConfig()))
    assert {each.block_size for _, each in adapted_layers(model)} == {16}, "32 and 48 inputs"
    assert "blocks of 16 inputs" in "".join(capsys.readouterr())
    prime = Llama(LlamaConfig(**{**SHAPE, "ffn_dim": 37}))
    with pytest.raises(
        UsageError, match=r"no number from 2 to 32 divides the inputs of all projections, which have 32, 37"
    ):
        COMPONENT.build(OftConfig()).inject(prime)


def test_blocks_are_so_many_of_each_projection_and_exclude_a_size() -> None:
    model, _ = inject(COMPONENT.build(OftConfig(blocks=4)))
    assert {(each.in_features, each.block_size) for _, each in adapted_layers(model)} == {(32, 8), (48, 12)}
    with pytest.raises(ValueError, match="block_size=8 and blocks=4 both say"):
        OftConfig(block_size=8, blocks=4)


def test_the_nearest_divisor_is_pefts() -> None:
    theirs = PeftOft(linear(), "default", r=0, config=OFTConfig(r=0, oft_block_size=8))
    for number in (24, 36, 64, 97):
        for wanted in range(1, 110):
            assert nearest_divisor(number, wanted) == theirs.adjust_oft_parameters(number, wanted)
