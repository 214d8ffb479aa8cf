"""The table of kinds: each says what is there, and what a plugin brings cannot stand in the way of the core's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import mt_conformance
from mt_core import hookspecs
from mt_core.errors import ComponentError
from mt_core.kinds import CORE_KINDS, KEYS_OF_RUNS, Kind
from mt_train.cli.request import REPEATED, SWITCHES, VALUES
from mt_train.config.run import SECTIONS, RunConfig

GOOD: dict[str, Any] = {
    "name": "reward",
    "hook": "mt_rewards",
    "slot": "many",
    "key": "rewards",
    "returns": "acme:Reward",
    "summary": "a score",
}


@pytest.mark.parametrize("name", CORE_KINDS)
def test_what_a_kind_names_is_there(name: str) -> None:
    kind = CORE_KINDS[name]
    module, _, wanted = kind.returns.partition(":")
    assert hasattr(import_module(module), wanted)
    if kind.conformance:
        assert kind.conformance.partition(":")[2] in mt_conformance.__all__
    assert hasattr(hookspecs, kind.hook)


def test_the_slots_of_a_run_are_those_of_the_table() -> None:
    fields = [name for name in RunConfig.model_fields if name not in SECTIONS and name != "extensions"]
    assert fields == [*CORE_KINDS.slots, *CORE_KINDS.lists]


def test_keys_that_no_kind_can_have_are_the_sections_and_the_options_of_the_command() -> None:
    options = {*SWITCHES, *VALUES, *REPEATED}
    assert {*SECTIONS, *options, "name", "include"} == KEYS_OF_RUNS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "Reward"}, "'Reward' is no name of a kind"),
        ({"hook": "rewards"}, "hook 'rewards' of kind 'reward' is no name of a hook"),
        ({"slot": "part"}, "is a part and has key 'rewards'"),
        ({"key": "train"}, "is a key of every run"),
        ({"key": "resume"}, "is a key of every run"),
        ({"key": "re wards"}, "is no key"),
        ({"returns": "Reward"}, "write MODULE:NAME"),
        ({"conformance": "Base"}, "write MODULE:NAME"),
        ({"summary": " "}, "has no summary"),
    ],
)
def test_a_kind_that_cannot_be_is_refused_with_what_to_write(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ComponentError) as raised:
        Kind(**GOOD | changes)
    assert words in str(raised.value)


def test_a_kind_of_which_a_run_names_one_has_its_name_for_a_key() -> None:
    assert Kind(**GOOD | {"slot": "one", "key": ""}).key == "reward"
    assert Kind(**GOOD | {"slot": "part", "key": ""}).key == ""
