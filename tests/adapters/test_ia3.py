"""(IA)³ against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
from peft import IA3Config as PeftConfig
from peft.tuners.ia3.layer import Linear as PeftIa3
from torch import device

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, start
from tiny_model import inject

from mt_core import UsageError
from mt_core.adapters import adapted_layers
from mt_plugin_adapters.variants.ia3 import COMPONENT
from mt_plugin_adapters.variants.ia3.config import Ia3Config
from mt_plugin_adapters.variants.ia3.layer import Ia3Linear
from mt_plugin_phi.config import PhiConfig
from mt_plugin_phi.model import Phi

SMALL: dict = {}
LEARNING: dict = {"margin": 0.05}  # 384 numbers


def layer(of_inputs: bool) -> Ia3Linear:
    return start(Ia3Linear(linear(), of_inputs=of_inputs))


@pytest.mark.parametrize("of_inputs", [True, False])
def test_output_gradients_and_merged_weight_and_bias_equal_pefts(of_inputs: bool) -> None:
    ours = move(layer(of_inputs))
    theirs = PeftIa3(copy.deepcopy(linear()), "default", config=PeftConfig(), is_feedforward=of_inputs)
    compare(ours, theirs, {"ia3_l": theirs.ia3_l["default"]})


@pytest.mark.parametrize("of_inputs", [True, False])
def test_it_begins_as_the_base_and_merges_and_unmerges(of_inputs: bool) -> None:
    check_start_and_merge(layer(of_inputs), linear())


def gains(**options: object) -> dict[str, bool]:
    model, _ = inject(COMPONENT.build(Ia3Config(**options)))
    return {name.rpartition(".")[2]: layer.of_inputs for name, layer in adapted_layers(model)}


def test_the_papers_targets_are_taken_and_the_feed_forwards_input_is_scaled() -> None:
    assert gains() == {"k_proj": False, "v_proj": False, "down_proj": True}
    assert gains(targets=("q_proj",)) == {"q_proj": False}
    assert gains(targets=("q_proj", "up_proj"), feedforward=("up_proj",)) == {"q_proj": False, "up_proj": True}
    assert gains(feedforward=()) == {"k_proj": False, "v_proj": False, "down_proj": False}


def test_a_pattern_that_names_no_target_is_refused() -> None:
    with pytest.raises(UsageError, match=r"adapter\.feedforward: 'up_proj' names none"):
        gains(feedforward=("up_proj",))


def test_a_model_without_the_papers_projections_is_told_of_its_own() -> None:
    """The message for Phi and DeepSeek named targets that nobody had set."""
    with device("meta"):
        phi = Phi(PhiConfig(vocab_size=32, max_seq_len=16, dim=8, n_layers=1, n_heads=2, n_kv_heads=2, ffn_dim=12))
    says = r"ia3 trains gains of keys, values .* has no k_proj, v_proj; .*--adapter\.targets: down_proj, gate_up_proj, o_proj, qkv_proj"
    with pytest.raises(UsageError, match=says):
        COMPONENT.build(Ia3Config()).inject(phi)
    COMPONENT.build(Ia3Config(targets=("down_proj",))).inject(phi)
