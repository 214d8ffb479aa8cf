"""Every family trains, stops, goes on and talks on every layout. A new family is one line in ``FAMILIES``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_conformance.forward import generate_greedily
from mt_core.nn import Batch, TrainModel
from mt_core.plugins.host import PluginHost
from mt_tools.cli.generate import main as generate
from mt_train.assemble.parts import Parts
from mt_train.cli.train import main as train
from mt_train.engine.build import fill_model
from mt_train.engine.processes import Process
from mt_train.plugins.resolve import resolve

SMALL: dict[str, Any] = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}
LATENT: dict[str, Any] = {
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_experts": 8,
    "n_groups": 4,
    "expert_dim": 32,
    "norm_eps": 1e-3,
    "balance_rate": 1e-3,
}
MISTRAL: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "sliding_window": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"name": "llama", **SMALL},
    "gemma-1": {"name": "gemma", "variant": "1-tiny", **SMALL, "n_kv_heads": 1},
    "gemma-2": {"name": "gemma", "variant": "2-tiny", "window": 8, **SMALL},
    "gemma-3": {"name": "gemma", "variant": "3-tiny", "window": 8, "global_every": 2, **SMALL},
    "qwen-2.5": {"name": "qwen", "variant": "2.5-tiny", "window": 8, "window_from": 1, **SMALL},
    "qwen-3": {"name": "qwen", "variant": "3-tiny", **SMALL},
    "qwen-3, experts": {"name": "qwen", "variant": "3-tiny-moe", "expert_dim": 16, "balance": 0.01, **SMALL},
    "mistral": {"name": "mistral", **SMALL, "window": 8, "window_pattern": ["full", "window"]},
    "mixtral": {"name": "mistral", "variant": "tiny-moe", **SMALL, "ffn_dim": 32, "balance": 0.01},
    "smollm-3": {"name": "smollm", "no_rope_every": 2, **SMALL},
    # norms behind attention of a width like this one's would make rounding of it visible with the usual epsilon
    "olmo-3": {
        "name": "olmo",
        "variant": "3-tiny",
        **SMALL,
        "window": 8,
        "window_pattern": ["window", "full"],
        "norm_eps": 1e-3,
    },
    "phi-4": {"name": "phi", "window": 8, "rotary_part": 0.5, **SMALL},
    "glm-4": {"name": "glm", **SMALL},
    "gpt-oss": {"name": "gpt-oss", "window": 8, **SMALL, "n_experts": 4},
    "deepseek-v3": {"name": "deepseek", **LATENT},
    "mistral, by transformers' own code": {"name": "huggingface", "config": MISTRAL},
}
"""Name in these tests → the model slot of a run. Windows are shorter than the rows."""
OF_SHARED_BLOCKS = (
    *("llama", "gemma-1", "gemma-2", "qwen-2.5", "qwen-3"),
    *("mistral", "mixtral", "smollm-3", "olmo-3", "phi-4", "glm-4"),
)
"""Families of blocks that the others show on every layout; a few layouts of each, and all of them with -m soak."""
FEW_LAYOUTS = ("whole", "packed", "zero3", "pipeline-packed")
IN_FULL = ("deepseek-v3",)
"""Families on every layout: one of experts behind latent attention. The others have what stands for most, and ``tests/train/engine``
has the plain block of Llama on more layouts than there are here."""
MOST_LAYOUTS = (
    *FEW_LAYOUTS,
    "zero1",
    "recompute",
    "zero3-packed",
    "sequence-packed",
    "resumed",
    "resumed-from-pipeline",
)

GPT_OSS = {
    **{key: value for key, value in MISTRAL.items() if key != "model_type"},
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 8,
}
MIXTURES: dict[str, dict[str, Any]] = {
    **{name: FAMILIES[name] for name in ("qwen-3, experts", "mixtral", "gpt-oss", "deepseek-v3")},
    "gpt-oss, by transformers' own code": {"name": "huggingface", "config": GPT_OSS},
}
"""Models whose experts ranks divide."""

PACKED = {"objective": "pretrain"}
ALONE: dict[str, dict[str, Any]] = {
    "whole": {"stage": 0},
    "packed": {"stage": 0, **PACKED},
    "recompute": {"stage": 0, "recompute": True},
}
"""Layout → what it is; on one process."""
SHARED: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "zero3-packed": {"stage": 3, **PACKED},
    "sequence": {"stage": 1, "sequence": 2},
    "sequence-packed": {"stage": 3, "sequence": 2, **PACKED},
    "pipeline": {"stage": "auto", "pipeline": 2},
    "pipeline-packed": {"stage": "auto", "pipeline": 2, "recompute": True, **PACKED},
    "resumed": {"stage": 1, "do": "resume"},
    "resumed-from-pipeline": {"stage": "auto", "pipeline": 2, "do": "resume", "then": {"stage": 3, "pipeline": 1}},
}
"""The same on two."""
DIVIDED: dict[str, Any] = {"stage": 3, "expert": 2, "do": "resume", "then": {"stage": 1, "expert": 2}}
"""Expert ranks at two stages."""

SCARCE: dict[str, Any] = {
    "name": "qwen",
    "variant": "3-tiny-moe",
    **SMALL,
    "n_experts": 8,
    "top_k": 1,
    "expert_dim": 8,
}
"""A mixture with so many experts that a micro-batch of one row leaves some of them out."""
LORA: dict[str, Any] = {"family": SCARCE, "micro": 1, "adapter": {"name": "lora", "rank": 2}}
NF4: dict[str, Any] = {**LORA, "quantizer": "nf4", "optimizer": {"name": "adamw", "lr": 1e-2, "eps": 1e-6}}
"""A larger epsilon than AdamW's usual 1e-8: of these weights in four bits, one gradient of the second step is 1.3e-8 (others 2e-3), and
its last digits would say how far its weight goes. With 1e-8, one process whose first values are moved by at most one ulp is up to
2.0e-5 away from itself in the third norm, as far as two ranks are at any stage (2.1e-5); with 1e-6, both stay below 3e-7."""
LISTED_ALONE: dict[str, dict[str, Any]] = {"lora": {"stage": 0, **LORA}, "nf4": {"stage": 0, **NF4}}
LISTED: dict[str, dict[str, Any]] = {
    "lora: zero2": {"stage": 2, **LORA},
    "lora: zero3": {"stage": 3, **LORA},
    "lora: sequence": {"stage": 1, "sequence": 2, **LORA},
    "lora: pipeline": {"stage": "auto", "pipeline": 2, "recompute": True, **LORA},
    "nf4: zero3": {"stage": 3, **NF4},
}
"""Adapter or quantizer, and layout → the case: experts are listed, each a module of its own."""
LISTED_AT_NIGHT = ("nf4: zero3",)

Launch = Callable[..., dict[str, Any]]


def layouts_of(family: str, layouts: dict[str, dict[str, Any]]) -> list[str]:
    some = FEW_LAYOUTS if family in OF_SHARED_BLOCKS else MOST_LAYOUTS
    return [name for name in layouts if family in IN_FULL or name in some]


def of_all_families(layouts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        f"{family}: {name}": {**layouts[name], "family": slot}
        for family, slot in FAMILIES.items()
        for name in layouts_of(family, layouts)
    }


LEFT_OUT = [(family, layout) for family in FAMILIES for layout in SHARED if layout not in layouts_of(family, SHARED)]
"""Layouts of families that are left to -m soak."""


@pytest.fixture(scope="module")
def one(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    mixtures = {f"{name}: whole": {"stage": 0, "family": slot} for name, slot in MIXTURES.items()}
    cases = of_all_families(ALONE) | {"lora": LISTED_ALONE["lora"]} | mixtures
    return launch("families/family_worker.py", 1, tmp_path_factory.mktemp("one"), cases)


@pytest.fixture(scope="module")
def two(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    divided = {f"{name}: divided": {**DIVIDED, "family": slot} for name, slot in MIXTURES.items()}
    listed = {name: case for name, case in LISTED.items() if name not in LISTED_AT_NIGHT}
    cases = of_all_families(SHARED) | listed | divided
    return launch("families/family_worker.py", 2, tmp_path_factory.mktemp("two"), cases)


def close(first: list[float], second: list[float], tolerance: float) -> bool:
    return len(first) == len(second) and all(
        abs(a - b) <= tolerance * abs(a) for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize(
    ("family", "layout"), [(family, layout) for family in FAMILIES for layout in layouts_of(family, SHARED)]
)
def test_two_processes_equal_one(one: dict[str, Any], two: dict[str, Any], family: str, layout: str) -> None:
    """Losses, norms and evaluations to 1e-5 of each, and the same tokens; whatever the layout, rows and stops."""
    assert_alike(one, two, family, layout)


@pytest.fixture(scope="module")
def left_out(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {f"{family}: {layout}": {**SHARED[layout], "family": FAMILIES[family]} for family, layout in LEFT_OUT}
    return launch("families/family_worker.py", 2, tmp_path_factory.mktemp("left_out"), cases)


@pytest.mark.soak
@pytest.mark.parametrize(("family", "layout"), LEFT_OUT)
def test_every_family_does_so_on_every_layout(
    one: dict[str, Any], left_out: dict[str, Any], family: str, layout: str
) -> None:
    assert_alike(one, left_out, family, layout)


def assert_alike(one: dict[str, Any], two: dict[str, Any], family: str, layout: str) -> None:
    alone = one[f"{family}: {'packed' if 'packed' in layout else 'whole'}"]
    shared = two[f"{family}: {layout}"]
    assert alone["tokens"] == shared["tokens"]
    for key in ("losses", "norms", "eval"):
        assert close(alone[key], shared[key], 1e-5), (key, alone[key], shared[key])


@pytest.mark.parametrize("case", [name for name in LISTED if name not in LISTED_AT_NIGHT])
def test_listed_experts_of_which_ranks_miss_some_equal_one_process(
    one: dict[str, Any], two: dict[str, Any], case: str
) -> None:
    assert_listed_alike(one[case.partition(":")[0]], two[case])


@pytest.mark.night
def test_listed_experts_in_four_bits_do_so(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> None:
    worker, folder = "families/family_worker.py", tmp_path_factory.mktemp
    alone = launch(worker, 1, folder("one"), {"nf4": LISTED_ALONE["nf4"]})
    shared = launch(worker, 2, folder("two"), {name: LISTED[name] for name in LISTED_AT_NIGHT})
    for found in shared.values():
        assert_listed_alike(alone["nf4"], found)


def assert_listed_alike(alone: dict[str, Any], shared: dict[str, Any]) -> None:
    """Ranks gather the weights of all experts in the same order, whether or not they have tokens for them."""
    for key in ("losses", "norms", "eval"):
        assert close(alone[key], shared[key], 1e-5), (key, alone[key], shared[key])


@pytest.mark.parametrize("family", MIXTURES)
def test_ranks_that_divide_experts_equal_one_process(one: dict[str, Any], two: dict[str, Any], family: str) -> None:
    """At ZeRO 3, and from its checkpoint on at ZeRO 1."""
    alone, divided = one[f"{family}: whole"], two[f"{family}: divided"]
    for key in ("losses", "norms", "eval"):
        assert close(alone[key], divided[key], 1e-5), (key, alone[key], divided[key])


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_fall(one: dict[str, Any], family: str) -> None:
    losses = one[f"{family}: whole"]["losses"]
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(
    "family",
    [family for family in FAMILIES if family not in OF_SHARED_BLOCKS and FAMILIES[family]["name"] != "huggingface"],
)
def test_zero_1_2_and_3_agree_bit_for_bit(two: dict[str, Any], family: str) -> None:
    """Not the code of transformers, whose norms add a third gradient to that of the residual: ZeRO 3 hooks into each norm, and so
    adds them up in another order."""
    stages = [two[f"{family}: zero{stage}"] for stage in (1, 2, 3) if f"{family}: zero{stage}" in two]
    assert len(stages) > 1
    for key in ("losses", "weights"):
        assert all(stage[key] == stages[0][key] for stage in stages), key


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in OF_SHARED_BLOCKS])
def test_two_steps_and_another_equal_three_bit_for_bit(two: dict[str, Any], family: str) -> None:
    whole, parts = two[f"{family}: zero1"], two[f"{family}: resumed"]
    assert whole["losses"] == parts["losses"]
    assert whole["state"] == parts["state"]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in OF_SHARED_BLOCKS])
def test_recomputing_activations_changes_nothing(one: dict[str, Any], family: str) -> None:
    assert one[f"{family}: whole"]["losses"] == one[f"{family}: recompute"]["losses"]


@pytest.mark.parametrize("family", FAMILIES)
def test_copies_of_tied_embeddings_on_two_stages_stay_equal(two: dict[str, Any], family: str) -> None:
    """Where the family ties them; llama's tiny size does not."""
    layout = "pipeline" if family in IN_FULL else "pipeline-packed"
    for hashes in two[f"{family}: {layout}"]["copies"].values():
        assert len(hashes) == 2
        assert len(set(hashes)) == 1


# ---------------------------------------------------------------------------------------------------------- generation


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> TrainModel:
    """New weights, five times as wide as usual: with the usual ones a wrong position or window would not show."""
    parts = Parts.of(resolve({"model": FAMILIES[request.param]}, PluginHost.discover()))
    built = parts.model()
    fill_model(built, {}, seed=1, process=Process(0, 1, 0, torch.device("cpu")))
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(5)
    return built.eval()


PROMPTS = [list(range(60, 90)), [7], [101, 102, 40, 3, 3, 250], list(range(100, 140))]


def test_text_with_a_cache_and_in_a_batch_is_the_text_without(model: TrainModel) -> None:
    batch = generate_greedily(model, PROMPTS, 20)
    for prompt, new in zip(PROMPTS, batch, strict=True):
        ids = torch.tensor([prompt + new])
        zeros = torch.zeros_like(ids)
        with torch.inference_mode():
            logits = model.head(model(Batch(ids, zeros, torch.arange(ids.shape[1])[None], zeros)))
        assert logits[0, len(prompt) - 1 : -1].argmax(-1).tolist() == new


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=[pytest.mark.night] if family in OF_SHARED_BLOCKS else []) for family in FAMILIES],
)
def test_a_run_is_trained_resumed_and_talks(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slot = dict(FAMILIES[family])
    words = ["--model", slot.pop("name"), *(word for key in slot for word in (f"--model.{key}", str(slot[key])))]
    run = str(tmp_path / "run")
    small = [
        "--train.sequence-len",
        "64",
        "--train.micro-batch-size",
        "2",
        "--data.read-rows",
        "4",
        "--data.eval",
        "none",
    ]
    assert train([*words, *small, "--train.steps", "2", "--output", run]) == 0
    assert train(["--resume", run, "--train.steps", "3"]) == 0
    capsys.readouterr()
    assert generate(["--run", run, "--prompt", "The if statement", "--max-new-tokens", "12"]) == 0
    assert capsys.readouterr().out.strip()
