"""Names of other programs: each is answered with an option that exists, and no key of ours is taken for theirs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from mt_core.errors import ConfigError, Fault
from mt_core.plugins.host import PluginHost
from mt_train import load_config
from mt_train.cli.request import REPEATED, SWITCHES, VALUES
from mt_train.config.foreign_answers import answer_fault, answer_name, find_answer
from mt_train.config.foreign_names import FOREIGN_COMPONENTS, FOREIGN_NAMES
from mt_train.config.own_names import COMMAND_OPTIONS
from mt_train.config.run import SECTIONS, AdapterOptions, ModelOptions

DOCS = Path(__file__).parents[3] / "docs"
OPTIONS = yaml.safe_load(Path(__file__).with_name("foreign_options.yaml").read_text())
"""Program and version → its options, with spaces between."""
TOO_GENERAL = {
    "batch_size": "any of three of ours, which are named",
    "alpha": "of CPO, LoRA or a divergence",
    "beta1": "of AdaLoRA or Adam",
    "beta2": "of AdaLoRA or Adam",
    "debug": "no option of a run",
    "lang": "of a benchmark",
    "revision": "of weights or rows",
    "strict": "of a config or rows",
    "log_history": "no option",
}
"""Names that are not answered, since they mean another thing in each program."""
HERE = [here for answers in FOREIGN_NAMES.values() for here in answers]
NAMES = [name for answers in FOREIGN_NAMES.values() for names in answers.values() for name in names.split()]


@pytest.fixture(scope="module")
def options() -> set[str]:
    """Everything that ``mt-train`` understands with the plugins that are here, and each slot with the names of its components."""
    host = PluginHost.discover()
    kinds = host.kinds
    known = {*SWITCHES, *VALUES, *REPEATED, *kinds.slots, *kinds.lists}
    known |= {f"model.{key}" for key in ModelOptions.model_fields}
    known |= {f"adapter.{key}" for key in AdapterOptions.model_fields}
    known |= {f"{section}.{key}" for section, config in SECTIONS.items() for key in config.model_fields}
    for kind in kinds.values():
        for offer in host.offers(kind.name) if kind.key else ():
            place = f"{kind.key}.{offer.component.name}" if kind.slot == "many" else kind.key
            known |= {f"{place}.{key}" for key in offer.component.config.model_fields} | {
                f"{kind.key} {offer.component.name}"
            }
    return {"--" + key.replace("_", "-") for key in known}


@pytest.mark.parametrize("here", HERE)
def test_what_a_name_is_here_exists(here: str, options: set[str]) -> None:
    plain = re.sub(r"`[^`]*`", "", here)  # of another command
    found = set(re.findall(r"--[a-z][a-z0-9.-]*", plain))
    assert here.startswith(("--", "`", "not ", "without a counterpart"))
    assert not found - options
    slots = {option.split()[0] for option in options if " " in option}
    named = [pair for pair in re.findall(r"(--[a-z-]+) ([a-z]\S*)", plain) if pair[0] in slots and pair[1] != "or"]
    assert not {" ".join(pair).rstrip(";,") for pair in named} - options, "a component of that name is installed"


def test_each_name_stands_once_and_none_is_a_slot_or_section_of_ours() -> None:
    kinds = PluginHost.discover().kinds
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    assert not {*NAMES} & {*kinds.slots, *kinds.lists, *SECTIONS, *SWITCHES, *VALUES, *REPEATED}


@pytest.mark.usefixtures("kit_model")
@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"train": {"max-steps": 5}}, "train.max-steps: no such key. max_steps of the Hugging Face Trainer is --train.steps here."),
        ({"train": {"learning_rate": 1}}, "learning_rate of the Hugging Face Trainer is --optimizer.lr here."),
        ({"optimizer": {"learning_rate": 1}}, "learning_rate of the Hugging Face Trainer is --optimizer.lr here."),
        ({"learning-rate": 1}, "learning-rate: no such slot or section. learning_rate of the Hugging Face Trainer is --optimizer.lr here."),
        ({"optim": "adamw_torch"}, "is --optimizer here; adafactor is that with --optimizer.relative false."),
        ({"per_device_train_batch_size": 2}, "is --train.micro-batch-size here."),
        ({"gradient_accumulation_steps": 2}, "here; it counts the rows of a step on all devices together."),
        ({"adapter": {"r": 8}}, "r of peft is --adapter.rank here; with --adapter lora"),
        ({"adapter": {"name": "lora", "lora_alpha": 8}}, "is --adapter.alpha here"),
        ({"objective": {"num_generations": 8}}, "num_generations of TRL is --objective.group here"),
        ({"objective": {"name": "grpo", "beta": 0.1}}, "beta of TRL is --objective.kl here"),
        ({"peft_config": {"r": 8}}, "peft_config of TRL is --adapter here; with its options as keys below it. r of peft is"),
        ({"arguments": {"max_steps": 8}}, "arguments: no such slot or section. max_steps of the Hugging Face Trainer"),
        ({"stage": "sft"}, "stage of LLaMA-Factory is --objective here"),
        ({"log_level": "info"}, "log_level of the Hugging Face Trainer is --log.console-level or --log.file-level here."),
        ({"train": {"precision": "bf16"}}, "precision of torch and Lightning is --train.dtype here."),
        ({"optimizer": {"betas": [0.9, 0.99]}}, "is --optimizer.beta1 and --optimizer.beta2 here."),
        ({"sample_packing": True}, "sample_packing of axolotl is --data.batching packing here."),
        ({"eval_on_start": True}, "eval_on_start of the Hugging Face Trainer is `mt-eval --weights` here; before the run."),
        ({"train": {"pad_to_multiple_of": 8}}, "pad_to_multiple_of of TRL is --data.pad-multiple here."),
        ({"max_eval_samples": 8}, "max_eval_samples of qlora.py is --eval.limit here."),
        ({"upcast_layernorm": True}, "upcast_layernorm of LLaMA-Factory is not needed here; norms compute in fp32"),
        ({"diversity_penalty": 0.5}, "diversity_penalty of qlora.py is without a counterpart here; beams are searched without groups"),
    ],
    ids=str,
)  # fmt: skip
def test_a_foreign_name_is_answered_wherever_it_stands(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"model": "kit-tiny", **raw})
    (fault,) = caught.value.faults
    assert says in str(fault)
    assert "Did you mean" not in str(fault)
    assert "Known" not in str(fault)


@pytest.mark.parametrize("program", OPTIONS)
def test_each_option_of_a_program_is_answered_or_is_one_of_ours(program: str) -> None:
    kinds = PluginHost.discover().kinds
    ours = {
        *kinds.slots,
        *kinds.lists,
        *SECTIONS,
        *(name for config in SECTIONS.values() for name in config.model_fields),
    }
    names = OPTIONS[program].split()
    assert len(names) > 50
    assert [name for name in names if not find_answer(name) and name not in ours | {*TOO_GENERAL}] == []


def test_no_name_is_answered_for_an_option_that_no_program_has() -> None:
    listed = {name for names in OPTIONS.values() for name in names.split()}
    begins = [name[:-1] for name in NAMES if name.endswith("*")]
    assert [begin for begin in begins if not any(name.startswith(begin) for name in listed)] == []


def test_an_option_of_its_own_name_comes_before_those_of_its_begin() -> None:
    assert "--sampler.url" in answer_name("vllm_server_port")
    assert "`vllm serve`" in answer_name("vllm_tensor_parallel_size")


@pytest.mark.usefixtures("kit_model")
def test_a_section_with_many_keys_of_another_program_says_how_many_more_have_an_answer() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"model": "kit-tiny", "trl": dict.fromkeys(OPTIONS["trl 1.16"].split()[:40])})
    (fault,) = caught.value.faults
    assert re.search(r" [23]\d more of its keys have an answer: `mt-train --help KEY` gives each\.$", fault.fix)


@pytest.mark.usefixtures("kit_model")
@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"train": {"stepps": 5}}, "Did you mean 'steps'?"),
        ({"trian": {"max_steps": 5}}, "Did you mean 'train'?"),
        ({"parallel": {"stage": 2}}, "Did you mean 'zero-stage'?"),
        ({"optimizer": {"beta": 0.9}}, "Did you mean 'beta"),
        ({"optimizer": {"epsilon": 0.9}}, "Known keys: beta1"),
        ({"callbacks": {"early_stopping": {"max_steps": 3}}}, "callbacks.early-stopping.max-steps: no such key. Known"),
    ],
    ids=str,
)
def test_what_is_misspelt_or_somebody_elses_keeps_its_suggestion(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"model": "kit-tiny", **raw})
    (fault,) = caught.value.faults
    assert says in str(fault)


@pytest.mark.parametrize("page", ["from-trainer", "from-llama-factory"])
def test_each_name_in_the_table_of_a_page_is_answered_where_it_is_a_key(page: str) -> None:
    rows = [line.split("|")[1] for line in (DOCS / f"{page}.md").read_text().splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`((?!on_|should_)[a-z0-9]+_[a-z0-9_]+)(?::[^`]*)?`", row)}
    of_ours = {name for config in SECTIONS.values() for name in config.model_fields}
    assert len(names) > 20
    components = {name for answers in FOREIGN_COMPONENTS.values() for each in answers.values() for name in each.split()}
    host = PluginHost.discover()
    components |= {offer.component.name for kind in ("schedule", "objective") for offer in host.offers(kind)}
    left = {name for name in names if not find_answer(name) and name.replace("_", "-") not in components}
    assert left - of_ours - {*TOO_GENERAL} == set()


@pytest.mark.usefixtures("kit_model")
@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"optimizer": "adamw_torch_fused"}, "no optimizer named 'adamw_torch_fused'. It is --optimizer adamw here."),
        ({"adapter": "qlora"}, "It is --adapter lora --quantizer nf4, or --recipe qlora here."),
        (
            {"adapter": "PREFIX_TUNING"},
            "It is without a counterpart here; its virtual tokens would be tokens of the rows.",
        ),
        (
            {"optimizer": "adamw_torch_8bit"},
            "no optimizer named 'adamw_torch_8bit'. It is --optimizer torchao-adamw-8bit here.",
        ),
        ({"schedule": "reduce_lr_on_plateau"}, "It is --schedule constant --callbacks plateau here."),
        ({"schedule": "greedy"}, "It is without a counterpart here; --callbacks plateau lowers rates"),
        ({"adapter": {"lora": True}}, "adapter.lora: no such key. Adapter lora is named: --adapter lora."),
        (
            {"recipe": "lora"},
            "recipe: no such slot or section. It is no key of a config, but an option of the command: --recipe.",
        ),
    ],
    ids=str,
)
def test_a_component_or_an_option_of_the_command_in_the_wrong_place_is_told_its_own(
    raw: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"model": "kit-tiny", **raw})
    (fault,) = caught.value.faults
    assert says in str(fault)
    assert "Installed" not in str(fault)


def test_components_of_others_are_named_by_options_that_exist(options: set[str]) -> None:
    for kind, answers in FOREIGN_COMPONENTS.items():
        for answer, names in answers.items():
            assert {*re.findall(r"--[a-z.-]+", re.sub(r"`[^`]*`", "", answer))} <= options
            installed = {offer.component.name for offer in PluginHost.discover().offers(kind)}
            assert not {*names.split()} & installed, "a name that is ours needs no answer"


def test_options_of_the_command_are_its_own() -> None:
    assert {*COMMAND_OPTIONS} <= {*SWITCHES, *VALUES, *REPEATED}


@pytest.mark.usefixtures("kit_model")
def test_the_list_of_sections_stands_at_the_first_unknown_one_alone() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"model": "kit-tiny", "alpha_beta": 1, "gamma_delta": 2, "max_steps": 3})
    assert ["Known: model," in str(fault) for fault in caught.value.faults] == [True, False, False]


def test_a_key_of_ours_is_never_answered_with_itself() -> None:
    assert answer_name("train.seed") == ""
    assert answer_name("seed") == "seed of the Hugging Face Trainer is --train.seed here."
    fault = Fault(key="optimizer.weight-decay", problem="no such key.", fix="It takes no options.")
    assert answer_fault(fault) is fault
    assert answer_fault(wrong := Fault(key="train.max-steps", problem="is required.")) is wrong
