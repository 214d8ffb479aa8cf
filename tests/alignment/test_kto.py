"""KTO reads single answers beside those of other rows, and its baseline is that of the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mt_core import DataError, Rejected, Sample
from mt_plugin_alignment.objectives.config import KtoConfig
from mt_plugin_alignment.objectives.kto import KtoObjective
from mt_plugin_standard.tokenizers.byte import ByteConfig, build_byte
from mt_train.config.data import DataConfig
from mt_train.data.outcomes import encode_rows
from mt_train.data.templates import build_template

BYTES = build_byte(ByteConfig())


def objective(**options: Any) -> KtoObjective:
    return KtoObjective(BYTES, build_template(BYTES, DataConfig()), KtoConfig(**options))


def encoded(*rows: dict[str, Any], **options: Any) -> list[Any]:
    named = [{"id": f"row {number}", **row} for number, row in enumerate(rows)]
    return list(encode_rows(named.__getitem__, range(len(named)), objective(**options)))


def texts(sample: Sample) -> list[str]:
    """Each document as text, with a bar before what is trained on."""
    found = []
    for span in sample.spans:
        ids, trained = list(sample.ids[span]), list(sample.trained[span])
        first = trained.index(True)
        found.append(f"{BYTES.decode(ids[:first])}|{BYTES.decode(ids[first:])}")
    return found


ONE = {"prompt": "1:", "response": "a", "label": True}
TWO = {"prompt": "2:", "response": "b", "label": False}
THREE = {"prompt": "2:", "response": "c", "label": True}


def test_a_prompt_gets_the_answer_of_the_next_row_that_has_another_prompt() -> None:
    found = encoded(ONE, TWO, THREE)
    assert [texts(each) for each in found] == [["1:|a", "1:|b"], ["2:|b", "2:|a"], ["2:|c", "2:|a"]]
    assert [dict(each.document_values) for each in found] == [
        {"label": [1.0, 0.0], "mismatch": [0.0, 1.0]},
        {"label": [-1.0, 0.0], "mismatch": [0.0, 1.0]},
        {"label": [1.0, 0.0], "mismatch": [0.0, 1.0]},
    ]


def test_a_pair_is_two_answers_each_with_one_of_another_row() -> None:
    pair = {"prompt": "3:", "chosen": "good", "rejected": "bad"}
    first, second = encoded(pair, ONE)
    assert texts(first) == ["3:|good", "3:|bad", "3:|a", "3:|a"]
    assert list(first.document_values["label"]) == [1.0, -1.0, 0.0, 0.0]
    assert texts(second) == ["1:|a", "1:|good"]


def test_rows_that_cannot_be_read_are_passed_over_by_the_others() -> None:
    bad, empty = {**TWO, "label": "maybe"}, {**TWO, "response": " "}
    first, refused, dropped, last = encoded(ONE, bad, empty, THREE)
    assert texts(first) == ["1:|a", "1:|c"]
    assert isinstance(refused, DataError)
    assert "row 1: field 'label' is 'maybe'" in str(refused)
    assert dropped == Rejected("the answer is empty", "row 2")
    assert texts(last) == ["2:|c", "2:|a"]


@pytest.mark.parametrize("rows", [[ONE], [TWO, THREE]])
def test_a_row_without_another_prompt_beside_it_stands_alone(rows: list[dict[str, Any]]) -> None:
    assert [len(texts(each)) for each in encoded(*rows)] == [1] * len(rows)


def test_without_a_baseline_no_answer_of_another_row_is_read() -> None:
    assert [texts(each) for each in encoded(ONE, TWO, loss="apo-zero")] == [["1:|a"], ["2:|b"]]
    assert objective(loss="apo-zero").step_values == ()


def test_answers_are_counted_and_not_what_stands_beside_them() -> None:
    made = objective()
    samples = encoded({"prompt": "3:", "chosen": "good", "rejected": "bad"}, ONE, TWO)
    for rows in ([[each] for each in samples], [samples, []]):
        assert made.count(made.collate(rows, length=60).with_index()) == 4


def test_the_baseline_is_a_mean_over_the_step_and_never_below_0() -> None:
    made = objective()
    ratios, counts = torch.tensor([1.0, 0.0, 4.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert made.couple({"mismatch_ratio": ratios, "mismatch_count": counts})["baseline"].tolist() == [2.5] * 4
    assert made.couple({"mismatch_ratio": -ratios, "mismatch_count": counts})["baseline"].tolist() == [0.0] * 4
    nothing = torch.zeros(2)
    assert made.couple({"mismatch_ratio": nothing, "mismatch_count": nothing})["baseline"].tolist() == [0.0] * 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.5),
        ({"desirable_weight": 1.5, "undesirable_weight": 1.5}, 0.75),
        ({"desirable_weight": 1.5}, None),
        ({"prove": False}, None),
    ],
)
def test_the_first_loss_is_known_where_both_kinds_weigh_the_same(
    options: dict[str, Any], expected: float | None
) -> None:
    assert objective(**options).first_loss == expected
