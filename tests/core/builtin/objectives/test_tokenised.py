"""Rows that are token ids already."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core import DataError, Sample

ROWS: dict[str, tuple[dict[str, Any], list[bool]]] = {
    "everything": ({}, [True, True, True]),
    "labels": ({"labels": [-100, 8, 9]}, [False, True, True]),
    "trained": ({"trained": [False, False, True]}, [False, False, True]),
}


@pytest.fixture(params=["pretrain", "sft"])
def objective(request: pytest.FixtureRequest, build: Any) -> Any:
    return build("objective", request.param, {}, tokenizer=build("tokenizer", "byte"), template=None)


@pytest.mark.parametrize("form", ROWS)
def test_ids_are_taken_as_they_are_by_every_objective(form: str, objective: Any) -> None:
    fields, trained = ROWS[form]
    assert objective.encode({"id": "f:1", "input_ids": [7, 8, 9], **fields}) == Sample([7, 8, 9], trained, "f:1")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"input_ids": "7 8"}, "f:1: input_ids is no list of int"),
    "floats": ({"input_ids": [7.0]}, "f:1: input_ids is no list of int"),
    "booleans": ({"input_ids": [True]}, "f:1: input_ids is no list of int"),
    "negative": ({"input_ids": [-1]}, "f:1: input_ids has an id that is not from 0 to 2147483647"),
    "huge": ({"input_ids": [1 << 31]}, "f:1: input_ids has an id that is not from 0 to 2147483647"),
    "fewer labels": ({"input_ids": [7, 8], "labels": [7]}, "f:1: labels has 1 values for 2 input_ids"),
    "shifted labels": ({"input_ids": [7, 8], "labels": [8, -100]}, "f:1: labels differ from input_ids .* not shifted"),
    "numbers for trained": ({"input_ids": [7], "trained": [1]}, "f:1: trained is no list of bool"),
    "fewer trained": ({"input_ids": [7, 8], "trained": [True]}, "f:1: trained has 1 values for 2 input_ids"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_the_ids_is_named(fault: str, objective: Any) -> None:
    fields, message = FAULTS[fault]
    with pytest.raises(DataError, match=message):
        objective.encode({"id": "f:1", **fields})
