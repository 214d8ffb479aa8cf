"""The JSON Schema of a run's config takes what a run takes, and refuses a misspelt key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from mt_core.plugins.host import PluginHost
from mt_train.cli.train import main
from mt_train.plugins.recipes import recipe_file
from mt_train.plugins.resolve import resolve
from mt_train.plugins.schema import run_schema

REPOSITORY = Path(__file__).parents[3]
PAGES = ("data", "evaluations", "from-llama-factory", "recipes", "resume", "scale_out", "start")
HERE = re.compile(r"^cat > (?!paths)\w+\.yaml <<'END'\n(.*?)^END$", re.DOTALL | re.MULTILINE)
"""Configs that a page writes; ``paths.yaml`` names folders for ``@`` and is none of a run."""


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


@pytest.fixture(scope="module")
def schema(host: PluginHost) -> Draft202012Validator:
    found = json.loads(json.dumps(run_schema(host)))
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def faults(schema: Draft202012Validator, config: Any) -> list[str]:
    return [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in schema.iter_errors(config)]


def test_every_recipe_and_every_config_of_the_docs_is_valid(host: PluginHost, schema: Draft202012Validator) -> None:
    texts = {str(file): file.read_text() for file in map(recipe_file, host.offers("recipe"))}
    for page in PAGES:
        found = HERE.findall((REPOSITORY / f"docs/{page}.md").read_text())
        assert found, page
        texts |= {f"{page} {number}": text for number, text in enumerate(found)}
    texts["run"] = (REPOSITORY / "tests/golden/run/run.yaml").read_text()
    assert {name: faults(schema, yaml.safe_load(text)) for name, text in texts.items()} == {name: [] for name in texts}


def test_a_resolved_config_and_the_defaults_of_every_component_are_valid(
    host: PluginHost, schema: Draft202012Validator
) -> None:
    assert faults(schema, json.loads(json.dumps(resolve({"model": "llama"}, host).config.as_raw()))) == []
    count = 0
    for kind in host.kinds.values():
        for offer in host.offers(kind.name) if kind.slot != "part" else ():
            try:
                options = offer.component.config().model_dump(mode="json")
            except ValidationError:  # one that has to be told something
                continue
            config = {"name": offer.qualified_name, **options}
            assert faults(schema, {kind.key: config if kind.slot == "one" else [config]}) == [], offer.qualified_name
            count += 1
    assert count > 150


TAKEN = {
    "names": {"model": "llama", "optimizer": {"lr": "2e-4"}, "callbacks": "none", "trackers": None},
    "dashes": {"model": {"n-layers": 3, "allow-missing": "a,b"}, "data": {"max-len": 9}, "train": {"epochs": None}},
    "several": {"callbacks": ["early-stopping", {"name": "early_stopping", "min-delta": 0.1}]},
    "by name": {"callbacks": {"early-stopping": {"patience": 2}}, "rewards": {"python": {"path": "a.py"}}},
    "beside": {"include": "base.yaml", "train": {"seeds": "1,2"}, "dataset": {"path": "rows.jsonl"}},
    "weights": {"model": {"weights": "folder"}, "adapter": {"weights": "folder"}},
    "nothing": {"train": None, "adapter": None, "callbacks": {"stragglers": None, "early-stopping": {}}},
    "deepspeed": {"parallel": {"deepspeed": "ds.json"}},
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_run_takes_is_valid(schema: Draft202012Validator, name: str) -> None:
    assert faults(schema, TAKEN[name]) == []


REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "section": ({"tran": {"steps": 3}}, ("'tran' was unexpected",)),
    "key": ({"train": {"stepps": 3}}, ("train: ", "'stepps' was unexpected")),
    "named": ({"model": {"name": "llama", "n_layer": 3}}, ("model: ", "'n_layer' was unexpected")),
    "default": ({"optimizer": {"lrr": 1}}, ("optimizer: ", "'lrr' was unexpected")),
    "listed": ({"callbacks": [{"name": "early-stopping", "patienc": 2}]}, ("callbacks.0: ", "'patienc' was")),
    "mapped": ({"callbacks": {"early-stoping": {}}}, ("callbacks: ", "'early-stoping' was unexpected")),
    "deeper": ({"parallel": {"deepspeed": {"zero": 1}}}, ("parallel.deepspeed: ",)),
    "name": ({"schedule": "cosin"}, ("schedule: 'cosin' is not one of ", "'cosine'")),
    "whole number": ({"train": {"steps": "many"}}, ("train.steps: ",)),
    "number": ({"optimizer": {"lr": "high"}}, ("optimizer.lr: ",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_misspelt_key_name_or_value_is_refused_at_its_place(schema: Draft202012Validator, name: str) -> None:
    config, said = REFUSED[name]
    (found,) = faults(schema, config)
    for each in said:
        assert each in found


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "lr" in printed["$defs"]["optimizer:mt-plugin-standard:adamw"]["properties"]
