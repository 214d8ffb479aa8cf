"""Mistakes in a config, as a person can act on them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError

from mt_core import ConfigError
from mt_core.config.base import MtConfig
from mt_core.config.faults import faults_of
from mt_train import load_config


class RateConfig(MtConfig):
    all_rates: dict[str, float] = Field({}, description="by pattern")


def test_a_key_has_dashes_and_what_a_user_wrote_below_it_stays_as_it_is() -> None:
    with pytest.raises(ValidationError) as caught:
        RateConfig(all_rates={"*up_proj*": "fast"})  # type: ignore[dict-item]
    (fault,) = faults_of(caught.value, RateConfig, "task_print")
    assert fault.key == "task-print.all-rates.*up_proj*"


class ScaleConfig(MtConfig):
    rated: RateConfig | None = Field(None, description="the rates")
    several: tuple[RateConfig, ...] = Field((), description="more of them")


@pytest.mark.parametrize("given", [{"rated": {"all_rate": {}}}, {"several": [{}, {"all_rate": {}}]}])
def test_a_misspelt_key_of_a_config_inside_another_is_compared_with_its_neighbours(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ScaleConfig(**given)
    (fault,) = faults_of(caught.value, ScaleConfig, "task_print")
    assert fault.problem == "no such key."
    assert fault.fix == "Did you mean 'all-rates'? Known keys: all-rates."


def test_an_option_of_what_takes_none_says_so_and_where_else_it_may_belong(kit_model: None) -> None:
    with pytest.raises(
        ConfigError, match=r"tokenizer\.path: no such key\. It takes no options: .* another tokenizer\."
    ):
        load_config({"model": "kit-tiny", "tokenizer": {"name": "byte", "path": "somewhere"}})
