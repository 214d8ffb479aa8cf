"""Wishes are checked in one place, all faults at once."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from mt_core.errors import UsageError
from mt_core.generation import GenerationConfig, SamplingRules, find_faults

OUTSIDE = {
    "temperature": (0.0, -1.0, math.inf, math.nan),
    "top_k": (0, -3),
    "top_p": (0.0, 1.01, math.nan),
    "min_p": (-0.1, 1.1),
    "typical_p": (0.0, 1.0),
    "repetition_penalty": (0.0, -1.0, 1e-45),
    "length_penalty": (1000.0, -51.0, math.nan),
    "frequency_penalty": (math.nan,),
    "presence_penalty": (math.inf,),
    "no_repeat_ngram": (0,),
    "min_new_tokens": (-1,),
    "num_beams": (0,),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OUTSIDE.items() for value in values])
def test_a_value_out_of_bounds_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=rf"{name} must be .*; got {value}"):
        SamplingRules(**{name: value})


def test_several_faults_come_in_one_message() -> None:
    with pytest.raises(UsageError) as caught:
        SamplingRules(temperature=0.0, top_k=0, min_p=2.0)
    message = str(caught.value)
    assert message.startswith("3 faults:")
    assert all(name in message for name in ("temperature", "top_k", "min_p"))


CLASHES = {
    "beams and temperature": (
        {"num_beams": 4, "temperature": 0.7},
        "num_beams draws nothing by chance, so temperature",
    ),
    "greedy and top-p": ({"greedy": True, "top_p": 0.9}, "greedy draws nothing by chance, so top_p"),
    "length penalty alone": ({"length_penalty": 2.0}, "length_penalty belong to beam search"),
    "beams and stop": ({"num_beams": 4, "stop": ("x",)}, "stop is looked for in one growing text"),
    "stop and choices": ({"choices": ("x",), "stop": ("x",)}, "leave stop out"),
    "empty stop": ({"stop": ("",)}, "stop is an empty text"),
    "least above most": ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens 9 is above max_new_tokens 8"),
}


@pytest.mark.parametrize("clash", CLASHES)
def test_wishes_that_exclude_each_other_are_refused(clash: str) -> None:
    values, says = CLASHES[clash]
    own = {key: values[key] for key in ("stop", "choices", "max_new_tokens") if key in values}
    with pytest.raises(UsageError) as caught:
        GenerationConfig(rules=SamplingRules(**{key: value for key, value in values.items() if key not in own}), **own)
    assert says in str(caught.value)


def test_faults_are_spelt_as_the_user_spells_them() -> None:
    assert find_faults({"top_k": 0}, lambda name: "--" + name.replace("_", "-")) == [
        "--top-k must be from 1 to 10,000,000 tokens; got 0"
    ]


def test_rules_and_help_import_no_torch() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from mt_tools.cli.generate import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
