"""Keys that stand without their section, and options of the command that are spelled otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core.errors import ConfigError, UsageError
from mt_core.plugins.host import PluginHost
from mt_train.config.commandline import parse
from mt_train.plugins.resolve import resolve


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"lr": 1e-4}, "lr: no such slot or section. It is --optimizer.lr."),
        ({"steps": 10}, "steps: no such slot or section. It is --train.steps."),
        (
            {"batch-size": 4},
            "It may be --train.micro-batch-size, --train.global-batch-size or --eval.batch-size.",
        ),
        ({"adapter": "lora", "rank": 8}, "rank: no such slot or section. It is --adapter.rank."),
        ({"adapter": {"name": "lora"}, "rank": 8}, "It is --adapter.rank."),
        ({"rank": 8}, "Known: model"),
        ({"adapter": "lorra", "rank": 8}, "Known: model"),
    ],
)
def test_a_key_without_its_section_is_answered_with_it(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"model": "llama", **raw}, PluginHost.discover())
    assert says in str(caught.value)


def read(*words: str) -> Any:
    return parse(words, switches=("overwrite",), values=("output", "nproc_per_node"), repeated=("config",))


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("--outptu", "x"), "output"),
        (("--overwrit",), "overwrite"),
        (("--nproc-per-nod", "2"), "nproc-per-node"),
        (("--configs", "a.yaml"), "config"),
    ],
)
def test_an_option_of_the_command_that_is_misspelled_is_met_with_the_right_one(words: list[str], near: str) -> None:
    with pytest.raises(UsageError, match=f"{words[0]} is no option. Did you mean --{near}[?]"):
        read(*words)


def test_sections_and_names_of_other_programs_are_left_to_those_who_know_them() -> None:
    assert read("--optimzer", "adamw").raw == {"optimzer": "adamw"}, "nearer to a slot"
    assert read("--output-dir", "x").raw == {"output_dir": "x"}
    assert read("--lr", "3").raw == {"lr": 3}


def test_a_name_that_is_no_misspelling_is_left_to_the_kinds_which_may_be_absent() -> None:
    words = ("--row-filters", "short", "--row-filters.short.most", "6", "--output", "run")
    parsed = parse(words, switches=("overwrite",), values=("output", "profile"))
    assert parsed.flags == {"output": "run"}
    assert parsed.raw["row_filters"]
