"""Rows that are token ids already."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core import DataError, Sample

ROWS: dict[str, tuple[dict[str, Any], list[bool]]] = {
    "everything": ({}, [True, True, True]),
    "labels": ({"labels": [-100, 8, 9]}, [False, True, True]),
    "trained": ({"trained": [False, False, True]}, [False, False, True]),
    "trained as numbers": ({"trained": [0, 0, 1]}, [False, False, True]),
    "a mask of TRL": ({"completion_mask": [0, 1, 1]}, [False, True, True]),
    "both masks of TRL": ({"completion_mask": [0, 1, 1], "assistant_masks": [1, 1, 0]}, [False, True, False]),
    "columns of other rows": ({"labels": None, "trained": None, "attention_mask": None}, [True, True, True]),
    "labels of other rows": ({"labels": None, "completion_mask": [0, 1, 1]}, [False, True, True]),
    "nothing is padding": ({"attention_mask": [1, 1, 1]}, [True, True, True]),
}


@pytest.fixture(params=["pretrain", "sft"])
def objective(request: pytest.FixtureRequest, build: Any) -> Any:
    return build("objective", request.param, {}, tokenizer=build("tokenizer", "byte"), template=None)


@pytest.mark.parametrize("form", ROWS)
def test_ids_are_taken_as_they_are_by_every_objective(form: str, objective: Any) -> None:
    fields, trained = ROWS[form]
    assert objective.encode({"id": "f:1", "input_ids": [7, 8, 9], **fields}) == Sample([7, 8, 9], trained, "f:1")


@pytest.mark.parametrize("labels", [{}, {"labels": [0, 7, 8, 9, 0]}, {"trained": [False, True, True, True, False]}])
def test_padding_of_rows_that_were_padded_before_is_neither_read_nor_trained_on(labels: Any, objective: Any) -> None:
    """As ``transformers`` pads at either side; labels are often a copy of the ids."""
    row = {"id": "f:1", "input_ids": [0, 7, 8, 9, 0], "attention_mask": [0, 1, 1, 1, 0], **labels}
    assert objective.encode(row) == Sample([7, 8, 9], [True, True, True], "f:1")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"input_ids": "7 8"}, "f:1: input_ids is no list of int"),
    "floats": ({"input_ids": [7.0]}, "f:1: input_ids is no list of int"),
    "booleans": ({"input_ids": [True]}, "f:1: input_ids is no list of int"),
    "negative": ({"input_ids": [-1]}, "f:1: input_ids has an id that is not from 0 to 2147483647"),
    "huge": ({"input_ids": [1 << 31]}, "f:1: input_ids has an id that is not from 0 to 2147483647"),
    "fewer labels": ({"input_ids": [7, 8], "labels": [7]}, "f:1: labels has 1 values for 2 input_ids"),
    "shifted labels": ({"input_ids": [7, 8], "labels": [8, -100]}, "f:1: labels differ from input_ids .* not shifted"),
    "words for trained": (
        {"input_ids": [7], "trained": ["yes"]},
        "f:1: trained is no list of true and false, or 1 and 0",
    ),
    "numbers of documents": ({"input_ids": [7, 8], "attention_mask": [1, 2]}, "f:1: attention_mask is no list of true"),
    "a short mask": ({"input_ids": [7, 8], "attention_mask": [1]}, "f:1: attention_mask has 1 values for 2 input_ids"),
    "fewer trained": ({"input_ids": [7, 8], "trained": [True]}, "f:1: trained has 1 values for 2 input_ids"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_the_ids_is_named(fault: str, objective: Any) -> None:
    fields, message = FAULTS[fault]
    with pytest.raises(DataError, match=message):
        objective.encode({"id": "f:1", **fields})
