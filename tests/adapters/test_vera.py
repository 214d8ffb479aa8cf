"""VeRA against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from peft import VeraConfig as PeftConfig
from peft.tuners._buffer_dict import BufferDict
from peft.tuners.vera.layer import Linear as PeftVera
from peft.tuners.vera.model import _kaiming_init

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, start
from tiny_model import inject

from mt_core.adapters import adapted_layers
from mt_core.nn import SharedParameters
from mt_plugin_adapters.variants.vera import COMPONENT
from mt_plugin_adapters.variants.vera.config import VeraConfig
from mt_plugin_adapters.variants.vera.layer import VeraLinear, kaiming

SMALL: dict = {"rank": 32}


def layer() -> VeraLinear:
    """Of 24 inputs and 16 outputs, where the largest target has 40 and 20."""
    return start(VeraLinear(linear(), SharedParameters(), VeraConfig(**SMALL), (20, 40)))


def test_output_gradients_and_merged_weight_equal_pefts_with_matrices_of_a_larger_target() -> None:
    ours = move(layer())
    shared = [BufferDict({"default": each.data}) for each in (ours.vera_A, ours.vera_B)]
    theirs = PeftVera(copy.deepcopy(linear()), *shared, "default", config=PeftConfig(r=32), r=32)
    compare(
        ours,
        theirs,
        {"vera_lambda_d": theirs.vera_lambda_d["default"], "vera_lambda_b": theirs.vera_lambda_b["default"]},
    )


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear())


def test_the_random_matrices_are_drawn_as_pefts() -> None:
    ours = torch.empty(8, 24)
    kaiming(ours, torch.Generator().manual_seed(0))
    assert torch.equal(ours, _kaiming_init((8, 24), torch.Generator().manual_seed(0)))


def test_all_layers_share_matrices_of_the_largest_target_and_train_two_vectors_each() -> None:
    model, adapter = inject(COMPONENT.build(VeraConfig(**SMALL)))
    layers = [layer for _, layer in adapted_layers(model)]
    assert len(layers) == 14
    assert {(id(each.vera_A), tuple(each.vera_A.shape)) for each in layers} == {(id(layers[0].vera_A), (32, 48))}
    assert {(id(each.vera_B), tuple(each.vera_B.shape)) for each in layers} == {(id(layers[0].vera_B), (48, 32))}
    trained = adapter.trainable_parameters(model)
    assert {name.rpartition(".")[2] for name in trained} == {"vera_lambda_b", "vera_lambda_d"}
    assert len(trained) == 28
    assert len(adapter.saved_state(model)) == 30
