"""Pydantic's errors as faults."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError

from mt_core.config.base import MtConfig
from mt_core.config.faults import faults_of


class Rated(MtConfig):
    all_rates: dict[str, float] = Field({}, description="by pattern")


def test_a_key_has_dashes_and_what_a_user_wrote_below_it_stays_as_it_is() -> None:
    with pytest.raises(ValidationError) as caught:
        Rated(all_rates={"*up_proj*": "fast"})  # type: ignore[dict-item]
    (fault,) = faults_of(caught.value, Rated, "task_print")
    assert fault.key == "task-print.all-rates.*up_proj*"
