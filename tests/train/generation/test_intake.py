"""Prompts are divided so that the model is run over few tokens, and none is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mt_conformance.forward import Numbers
from mt_train.generation.intake import LEAST_SHARED, count_shared, count_tokens, plan_intakes
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


def test_what_is_shared_is_counted_once_and_only_where_padding_fits_into_it() -> None:
    assert count_shared([(*ALIKE, 1), (*ALIKE, 2)]) == LEAST_SHARED
    assert count_shared([ALIKE, (*ALIKE, 2)]) == LEAST_SHARED
    assert count_shared([ALIKE[1:], (*ALIKE[1:], 2)]) == 0, "too little to be worth a forward"
    assert count_shared([(*ALIKE, 1), (*ALIKE, *range(40))]) == 0, "more padding than there is to put it into"
    assert count_shared([(*ALIKE, 1)]) == 0
    rows = make_rows([(*ALIKE, 1), (*ALIKE, 2), (*ALIKE, 2)])
    assert count_tokens(rows) == LEAST_SHARED + 2
    assert plan_intakes(rows, 4) == [rows]
