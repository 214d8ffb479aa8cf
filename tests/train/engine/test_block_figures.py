"""How figures of blocks get into the sums of a step, on one process; tests/families/test_counting.py has the layouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from mt_core import ComponentError
from mt_core.nn import StepSums
from mt_train.engine.block_figures import BlockFigures

LIKE = torch.ones(2)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def reported(**pairs: float) -> StepSums:
    sums = StepSums()
    with sums.collecting():
        for name, value in pairs.items():
            sums.report(name, torch.tensor(value), 2.0)
    return sums


def test_pairs_are_in_the_order_of_the_names_and_a_silent_block_counts_as_nothing() -> None:
    sums = reported(b=3.0, a=1.0)
    figures = BlockFigures(sums)
    assert figures.pairs(LIKE, (), None).tolist() == [1, 2, 3, 2]
    assert figures.names == ("a", "b")
    with sums.collecting():
        sums.report("b", torch.tensor(5), 1.0)
    assert figures.pairs(LIKE, (), None).tolist() == [0, 0, 5, 1]


def test_a_model_without_figures_adds_nothing_to_what_is_sent() -> None:
    """Neither numbers nor digits: the sums of its loss stay in fp32."""
    pairs = BlockFigures(StepSums()).pairs(LIKE, ("accuracy",), None)
    assert pairs.numel() == 0
    assert torch.cat([LIKE, pairs]).dtype == torch.float32


@pytest.mark.parametrize(("name", "taken"), [("accuracy", ("accuracy",)), ("grad_norm", ()), ("loss", ())])
def test_a_name_that_the_record_has_already_is_refused(name: str, taken: tuple[str, ...]) -> None:
    with pytest.raises(
        ComponentError, match=f"a block reports the figure '{name}', which the step's record has already"
    ):
        BlockFigures(reported(**{name: 1.0})).pairs(LIKE, taken, None)


def test_a_name_that_was_not_in_the_first_step_is_refused() -> None:
    sums = reported(a=1.0)
    figures = BlockFigures(sums)
    figures.pairs(LIKE, (), None)
    with sums.collecting():
        sums.report("late", torch.ones(()), 1.0)
    with pytest.raises(ComponentError, match="'late', which no rank reported in the first step"):
        figures.pairs(LIKE, (), None)


def test_figures_of_a_whole_step_are_made_of_its_sum_and_averaged_over_blocks() -> None:
    sums = StepSums()
    with sums.collecting():
        for counts in ([1, 4], [6, 0]):  # micro-batches, of which the largest count is in another place each
            sums.gather("x", torch.tensor(counts), lambda total: {"most": total.max()})
        sums.gather("y", torch.tensor([1, 0]), lambda total: {"most": total.max()})
    figures = BlockFigures(sums)
    assert figures.pairs(LIKE, (), None).tolist() == [8, 2]
    assert figures.of_step["x"].tolist() == [7, 4]
