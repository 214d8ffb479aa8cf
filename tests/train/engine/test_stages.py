"""A pipeline stage holds its own layers, under the names of the whole model, and nothing of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mt_core.errors import ComponentError, ConfigError
from mt_core.nn import Batch, LayerSpec, RMSNorm, Rotary
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama, build_block
from mt_train.engine.build import fill_model, without_memory
from mt_train.engine.plan import Plan
from mt_train.engine.processes import Process
from mt_train.engine.stages import Stage, build_stage

CONFIG = LlamaConfig(vocab_size=20, max_seq_len=16, dim=8, n_layers=3, n_heads=2, n_kv_heads=2, ffn_dim=12)
TIED = CONFIG.model_copy(update={"tie_embeddings": True})
CPU = torch.device("cpu")


def plan(stages: int) -> Plan:
    return Plan(
        world=stages,
        device="cpu",
        dtype="fp32",
        zero_stage=1,
        offload="none",
        micro_batch_size=1,
        global_batch_size=1,
        clip_norm=None,
        pipeline=stages,
    )


def stage(
    number: int,
    stages: int,
    config: LlamaConfig = CONFIG,
    offered: Sequence[LayerSpec] | None = None,
    make: Callable[[LlamaConfig], Any] = Llama,
) -> Stage:
    process = Process(number, stages, number, CPU)
    return build_stage(lambda: make(config), offered, plan=plan(stages), process=process)


def own_parameters(found: Stage) -> dict[str, nn.Parameter]:
    return {name: p for name, p in found.model.named_parameters() if not p.is_meta}


def specs(config: LlamaConfig = CONFIG, *, key: str | None = None) -> list[LayerSpec]:
    """Llama's layers as a plugin would give them, with costs of its own."""
    rotary = Rotary(config.head_width, theta=config.rope_theta)
    blocks = [
        LayerSpec(prefix=f"model.layers.{i}", build=lambda i=i: build_block(config, rotary, i), cost=1.0)
        for i in range(config.n_layers)
    ]
    return [
        LayerSpec(
            prefix="model.embed_tokens",
            build=lambda: nn.Embedding(config.vocab_size, config.dim),
            cost=0.0,
            tie_key=key,
        ),
        *blocks,
        LayerSpec(prefix="model.norm", build=lambda: RMSNorm(config.dim, eps=config.norm_eps), cost=0.0),
        LayerSpec(
            prefix="lm_head",
            build=lambda: nn.Linear(config.dim, config.vocab_size, bias=False),
            cost=5.0,
            tie_key=key,
        ),
    ]


@pytest.mark.parametrize("config", [CONFIG, TIED], ids=["own-head", "tied"])
@pytest.mark.parametrize("offered", [False, True], ids=["derived", "offered"])
@pytest.mark.parametrize("stages", [2, 3, 6])
def test_stages_together_are_the_whole_model_with_its_names_and_values(
    stages: int, offered: bool, config: LlamaConfig
) -> None:
    whole = Llama(config)
    fill_model(whole, {}, seed=1, process=Process(0, 1, 0, CPU))
    expected, seen = dict(whole.named_parameters()), set()
    layers = specs(config, key="words" if config is TIED else None) if offered else None
    for number in range(stages):
        found = stage(number, stages, config, layers)
        fill_model(found.model, {}, seed=1, process=Process(0, 1, 0, CPU))
        assert [name for name, _ in found.model.named_parameters()] == list(expected)
        for name, parameter in own_parameters(found).items():
            assert torch.equal(parameter, expected[name]), name
            assert number in found.holders[name]
        seen |= own_parameters(found).keys()
    assert seen == expected.keys()


@pytest.mark.parametrize("offered", [False, True], ids=["derived", "offered"])
def test_weights_of_a_stage_are_built_in_the_dtypes_that_are_said(offered: bool) -> None:
    """A shared one too, on both of its stages."""
    layers = specs(TIED, key="words") if offered else None
    whole = [name for name, _ in Llama(TIED).named_parameters()]
    dtypes = {name: torch.bfloat16 for name in whole if "norm" not in name}
    for number in range(2):
        process = Process(number, 2, number, CPU)
        found = build_stage(lambda: Llama(TIED), layers, plan=plan(2), process=process, dtypes=dtypes)
        own = own_parameters(found)
        assert "model.embed_tokens.weight" in own
        for name, parameter in own.items():
            assert parameter.dtype == dtypes.get(name, torch.float32), name
        assert found.model.get_parameter("lm_head.weight") is found.model.get_parameter("model.embed_tokens.weight")


def test_a_stage_takes_no_memory_for_the_layers_of_others() -> None:
    whole = sum(parameter.numel() for parameter in Llama(CONFIG).parameters())
    sizes = [sum(parameter.numel() for parameter in own_parameters(stage(number, 3)).values()) for number in range(3)]
    assert sum(sizes) == whole
    assert max(sizes) < whole / 2


def test_a_shared_weight_is_on_each_stage_that_uses_it() -> None:
    first, last = stage(0, 2, TIED), stage(1, 2, TIED)
    assert first.shared_parameters() == last.shared_parameters() == {"model.embed_tokens.weight": (0, 1)}
    assert "model.embed_tokens.weight" in own_parameters(first)
    assert last.model.lm_head.weight is own_parameters(last)["model.embed_tokens.weight"]


def test_stages_follow_the_costs_that_a_plugin_gives() -> None:
    assert stage(0, 2).bounds == (0, 3, 6)
    assert stage(0, 2, offered=specs()).bounds == (0, 4, 6)


def test_a_tensor_that_is_no_parameter_is_real_in_a_model_without_memory() -> None:
    class WithBuffer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(3))
            self.linear = nn.Linear(2, 2)

    with without_memory():
        module = WithBuffer()
    assert module.table.tolist() == [0, 1, 2]
    assert all(parameter.is_meta for parameter in module.parameters())
    assert not any(parameter.is_meta for parameter in nn.Linear(2, 2).parameters()), "and only inside"


# ------------------------------------------------------------------------------------------------------------ refused


def test_a_model_with_a_forward_of_its_own_is_refused_without_layers_of_its_own() -> None:
    class Scaled(Llama):
        def forward(self, batch: Batch, cache: Any = None) -> Tensor:
            return 2 * super().forward(batch, cache)

    with pytest.raises(ComponentError, match="a forward of its own"):
        stage(0, 2, make=Scaled)
    stage(0, 2, make=Scaled, offered=specs())


def test_a_parameter_outside_the_layers_is_refused() -> None:
    class WithExtra(Llama):
        def __init__(self, config: LlamaConfig) -> None:
            super().__init__(config)
            self.extra = nn.Parameter(torch.ones(3))

    with pytest.raises(ComponentError, match="extra belong to no layer"):
        stage(0, 2, make=WithExtra)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: layers[1:], "the same prefixes in the same order"),
        (lambda layers: [*layers[:-1], specs(TIED, key="words")[-1]], "tie_key"),
        (
            lambda layers: [specs(CONFIG.model_copy(update={"dim": 4}))[0], *layers[1:]],
            "other parameters than the model",
        ),
    ],
    ids=["prefixes", "ties", "shapes"],
)
def test_layers_that_are_not_those_of_the_model_are_refused(change: Callable[..., Any], message: str) -> None:
    with pytest.raises(ComponentError, match=message):
        stage(0, 2, offered=change(specs()))


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"6 layers .* too few for 7 stages"):
        stage(0, 7)


def test_a_stage_that_trains_nothing_has_one_parameter_that_nothing_uses() -> None:
    found = stage(0, 2)
    groups = [{"name": "decay", "params": [p for p in found.model.parameters() if p.is_meta]}]
    (unused,) = found.own_groups(groups)
    assert unused["name"] == "unused"
    assert [tuple(each.shape) for each in unused["params"]] == [(1,)]
    assert not any(each is unused["params"][0] for each in found.model.parameters())
