"""Prompts are divided so that the model is run over few tokens, and none is lost."""

from __future__ import annotations

import math
from typing import cast

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mt_conformance.forward import Numbers
from mt_core.nn import Batch, KVCache, TrainModel
from mt_train.generation.intake import LEAST_SHARED, Intake, count_shared, count_tokens, plan_intakes
from mt_train.generation.request import Request, Row

ALIKE = tuple(range(LEAST_SHARED))
PROMPTS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 3), min_size=1, max_size=30)).map(
        lambda pair: (*(ALIKE if pair[0] else ()), *pair[1])
    ),
    min_size=1,
    max_size=12,
)


def make_rows(prompts: list[tuple[int, ...]]) -> list[Row]:
    return [Row(number, Request(ids=prompt), Numbers(), 256) for number, prompt in enumerate(prompts)]  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(prompts=PROMPTS, tokens=st.integers(1, 200))
def test_every_row_is_in_one_group_and_no_group_is_above_the_budget_unless_it_begins_alike(
    prompts: list[tuple[int, ...]], tokens: int
) -> None:
    groups = plan_intakes(make_rows(prompts), tokens)
    assert sorted(row.number for group in groups for row in group) == list(range(len(prompts)))
    for group in groups:
        together = len({row.request.ids[:LEAST_SHARED] for row in group}) == 1 < len(group)
        assert len(group) == 1 or together or count_tokens(group) <= tokens


def test_short_prompts_are_not_padded_to_long_ones_where_it_costs_much() -> None:
    groups = plan_intakes(make_rows([(1,) * 100, (2,), (3,) * 99, (4,) * 2]), 200)
    assert sorted(sorted(len(row.request.ids) for row in group) for group in groups) == [[1, 2], [99, 100]]


def test_a_row_joins_others_only_for_the_padding_that_a_forward_is_worth() -> None:
    rows = make_rows([(1,) * 100, (2,) * 98, (3,) * 60, (4,) * 45, (5,) * 44, (6,) * 44])

    def lengths(padding: int | None) -> list[list[int]]:
        return sorted(
            sorted(len(row.request.ids) for row in group) for group in plan_intakes(rows, 1000, padding=padding)
        )

    assert lengths(None) == [[44, 44, 45, 60, 98, 100]]
    assert lengths(2) == [[44, 44, 45], [60], [98, 100]], "45 columns instead of 44 are two tokens of padding"
    assert lengths(1) == [[44, 44], [45], [60], [98], [100]]
    assert lengths(45) == [[44, 44, 45, 60], [98, 100]]


@settings(max_examples=200, deadline=None)
@given(length=st.integers(1, 500), tokens=st.integers(1, 120))
def test_pieces_of_a_prompt_are_about_equal_and_none_is_a_small_rest(length: int, tokens: int) -> None:
    model, sizes = cast(TrainModel, nn.Identity()), list[int]()

    def forward(_: TrainModel, batch: Batch, cache: KVCache) -> Tensor:
        sizes.append(batch.input_ids.shape[1])
        return torch.zeros(len(batch.input_ids), 1)

    intake = Intake(make_rows([(1,) * length]), torch.device("cpu"))
    while intake.take(model, forward, tokens) is None:
        pass
    assert sum(sizes) == length
    assert max(sizes) <= tokens
    assert len(sizes) == math.ceil(length / tokens)
    assert max(sizes) - min(sizes) <= 1


def test_what_is_shared_is_counted_once_and_only_where_padding_fits_into_it() -> None:
    assert count_shared([(*ALIKE, 1), (*ALIKE, 2)]) == LEAST_SHARED
    assert count_shared([ALIKE, (*ALIKE, 2)]) == LEAST_SHARED
    assert count_shared([ALIKE[1:], (*ALIKE[1:], 2)]) == 0, "too little to be worth a forward"
    assert count_shared([(*ALIKE, 1), (*ALIKE, *range(40))]) == 0, "more padding than there is to put it into"
    assert count_shared([(*ALIKE, 1)]) == 0
    rows = make_rows([(*ALIKE, 1), (*ALIKE, 2), (*ALIKE, 2)])
    assert count_tokens(rows) == LEAST_SHARED + 2
    assert plan_intakes(rows, 4) == [rows]
