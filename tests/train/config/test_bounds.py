"""No number of a config is without an upper bound: what is larger than anything here could bear is told with its key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from mt_core.config.base import MOST_WHOLE, ModelConfig, MtConfig, nested_config
from mt_core.errors import UsageError
from mt_core.generation import MOST_CHOICES, GenerationConfig, SamplingRules
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection
from mt_train.config.run import SECTIONS

ALLOCATED = (
    "rank",
    "n_layers",
    "dim",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "ffn_dim",
    "experts",
    "sequence_len",
    "global_batch_size",
)
ALLOCATED += (
    "workers",
    "samples",
    "sample_tokens",
    "pipeline",
    "sequence",
    "timeout_seconds",
    "shuffle_buffer",
    "pad_multiple",
)
"""Fields for which memory, processes or a loop are taken as they say; each has a bound of its own."""


def configs() -> Iterator[type[MtConfig]]:
    host = PluginHost.discover(Selection())
    seen = [offer.component.config for plugin in host.plugins for offer in plugin.offers]
    for config in dict.fromkeys([*seen, *SECTIONS.values()]):
        yield config
        yield from (inner for field in config.model_fields.values() if (inner := nested_config(field.annotation)))


WHOLE = [
    pytest.param(config, name, id=f"{config.__module__}.{config.__name__}.{name}")
    for config in dict.fromkeys(configs())
    for name, field in config.model_fields.items()
    if field.annotation in (int, int | None)
]


def problem(config: type[MtConfig], **values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        config(**values)
    said = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in caught.value.errors()]
    return next((text for text in said if text.startswith(next(iter(values)))), "")


@pytest.mark.parametrize(("config", "name"), WHOLE)
def test_a_whole_number_beyond_the_bound_is_refused_under_its_key(config: type[MtConfig], name: str) -> None:
    for value in (2 * MOST_WHOLE, 10**30, 10**400):  # which any multiple_of divides
        assert (
            "less than or equal to" in (said := problem(config, **{name: value}))
            or "2^53" in said
            or "less than" in said
        )
    if name in ALLOCATED:
        assert "less than or equal to" in problem(config, **{name: 2**52}), "it has a bound of its own"


def test_numbers_that_are_none_are_refused_everywhere() -> None:
    for config in dict.fromkeys(configs()):
        for name, field in config.model_fields.items():
            if field.annotation in (float, float | None):
                for value in (float("inf"), float("nan"), ".inf", "nan"):
                    assert problem(config, **{name: value}), (config, name, value)


def test_a_model_of_any_family_has_bounds() -> None:
    class Family(ModelConfig):
        pass

    assert "max_seq_len" in problem(Family, max_seq_len=2**40)


@pytest.mark.parametrize(
    ("wish", "value"),
    [("num_beams", 10**6), ("top_k", 10**400), ("no_repeat_ngram", 10**12), ("min_new_tokens", 10**12)],
)
def test_wishes_of_generation_are_bounded(wish: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"{wish} must be from \d to [\d,]+( tokens)?; got "):
        SamplingRules(**{wish: value})


def test_a_text_its_seed_and_its_choices_are_bounded() -> None:
    with pytest.raises(UsageError, match="max_new_tokens must be from 1 to"):
        GenerationConfig(max_new_tokens=10**9)
    with pytest.raises(UsageError, match=r"seed must be a whole number of 64 bits; got 10{40}"):
        GenerationConfig(seed=10**100)
    with pytest.raises(UsageError, match="choices has 100,001 texts, and takes at most 100,000"):
        GenerationConfig(choices=tuple(map(str, range(MOST_CHOICES + 1))))
