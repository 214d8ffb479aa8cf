"""Advantages: formulas of the papers, computed again with torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mt_plugin_alignment.advantages import (
    SMALLEST,
    advantages,
    importance_weights,
    normalise_each,
    returns,
    whiten,
)

NAN = float("nan")
REWARDS = np.array([[1.0, 2.0, 4.0, 1.0], [3.0, 3.0, 3.0, 3.0]])


def test_advantages_are_those_of_the_papers() -> None:
    group = torch.tensor(REWARDS[0])
    expected = ((group - group.mean()) / (group.std() + SMALLEST)).tolist()
    assert advantages(REWARDS, baseline="group", scale="group")[0].tolist() == pytest.approx(expected, rel=1e-12)
    assert advantages(REWARDS, baseline="group", scale="none")[0].tolist() == [-1.0, 0.0, 2.0, -1.0]
    others = [value - (8.0 - value) / 3 for value in REWARDS[0]]
    assert advantages(REWARDS, baseline="others", scale="none")[0].tolist() == pytest.approx(others, rel=1e-12)
    whole = torch.tensor(REWARDS).std().item()
    by_batch = advantages(REWARDS, baseline="group", scale="batch")[0, 2]
    assert by_batch == pytest.approx(2.0 / (whole + SMALLEST), rel=1e-12)
    assert advantages(REWARDS, baseline="none", scale="none").tolist() == REWARDS.tolist()
    greedy = advantages(REWARDS, baseline="greedy", scale="none", greedy_P=np.array([2.0, 0.5]))
    assert greedy.tolist() == [[-1.0, 0.0, 2.0, -1.0], [2.5] * 4]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["group", "others"])
def test_answers_that_all_score_the_same_have_no_advantage(baseline: str, scale: str) -> None:
    assert advantages(REWARDS, baseline=baseline, scale=scale)[1].tolist() == [0.0] * 4  # type: ignore[arg-type]


def test_answers_without_a_score_count_for_nobody() -> None:
    missing = np.array([[1.0, NAN, 3.0], [2.0, NAN, NAN], [NAN] * 3])
    assert advantages(missing, baseline="others", scale="none").tolist() == [[-2.0, 0.0, 2.0], [0.0] * 3, [0.0] * 3]
    assert advantages(missing, baseline="none", scale="none").tolist() == [[1.0, 0.0, 3.0], [2.0, 0.0, 0.0], [0.0] * 3]
    found = advantages(missing, baseline="greedy", scale="none", greedy_P=np.array([2.0, NAN, 1.0]))
    assert found.tolist() == [[-1.0, 0.0, 1.0], [0.0] * 3, [0.0] * 3]


def test_each_reward_by_itself_is_that_of_trl() -> None:
    """``multi_objective_aggregation="normalize_then_sum"`` of TRL 1.16, line for line: a large reward does not drown a small one."""
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(12, 2, generator=generator, dtype=torch.float64) * torch.tensor([100.0, 0.1])
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    grouped = rewards.view(3, 4, 2)
    reward_k = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    total = (reward_k.view(12, 2) * weights).sum(1)
    expected = (total - total.mean()) / (total.std() + 1e-4)
    scores_RPG = rewards.T.reshape(2, 3, 4).numpy()
    found = normalise_each(scores_RPG, weights.numpy(), baseline="group", scale="group")
    assert found.ravel() == pytest.approx(expected.numpy(), rel=1e-10)
    summed = advantages((scores_RPG * np.array([1.0, 2.0])[:, None, None]).sum(0), baseline="group", scale="group")
    small = np.corrcoef(scores_RPG[1].ravel(), np.array([found.ravel(), summed.ravel()]))[0, 1:]
    assert small[0] > 0.5 > abs(small[1]), "sums lose the small reward"


def test_a_reward_of_weight_0_is_only_reported_and_a_missing_one_takes_its_answer_out() -> None:
    scores = np.array([[[1.0, 2.0, NAN, 4.0]], [[NAN, 0.0, 1.0, 0.0]]])
    found = normalise_each(scores, np.array([1.0, 0.0]), baseline="group", scale="group")
    assert found[0, 2] == 0.0
    assert found[0, 0] < found[0, 1] < found[0, 3]
    both = normalise_each(scores, np.array([1.0, 1.0]), baseline="group", scale="group")
    assert both[0, [0, 2]].tolist() == [0.0, 0.0]
    assert both[0, 1] == pytest.approx(-both[0, 3])


def test_tokens_are_whitened_as_in_reinforce_plus_plus() -> None:
    """The reward at the end, β log-ratios before it, summed from each token on, then ``masked_whiten``: all in torch."""
    beta, scores, lengths = 0.3, [1.0, -2.0, 0.5], [3, 5, 1]
    generator = torch.Generator().manual_seed(1)
    k1 = [torch.randn(length, generator=generator, dtype=torch.float64) for length in lengths]
    expected = []
    for score, each in zip(scores, k1, strict=True):
        running, own = 0.0, []
        for place in reversed(range(len(each))):
            running = float(-beta * each[place]) + (score if place == len(each) - 1 else 0.0) + running
            own.append(running)
        expected += own[::-1]
    flat = torch.tensor(expected, dtype=torch.float64)
    white = (flat - flat.mean()) * torch.rsqrt(flat.var(unbiased=True) + 1e-8)
    found = [score - beta * returns(each.numpy()) for score, each in zip(scores, k1, strict=True)]
    assert whiten(np.concatenate(found)) == pytest.approx(white.numpy(), rel=1e-10)
    assert whiten(np.array([3.0])).tolist() == [0.0]
    assert np.abs(whiten(np.full(7, 0.1))).max() < 1e-9


def test_weights_for_a_sampler_are_held_or_dropped() -> None:
    old, sampled = np.log([0.1, 0.4, 0.9, 0.5]), np.log([0.5, 0.5, 0.3, 0.5])
    held = importance_weights(old, sampled, low=0.5, high=2.0, drop=False)
    assert held.tolist() == pytest.approx([0.2, 0.8, 2.0, 1.0])
    dropped = importance_weights(old, sampled, low=0.5, high=2.0, drop=True)
    assert dropped.tolist() == pytest.approx([0.0, 0.8, 0.0, 1.0])
    assert np.isfinite(importance_weights(np.array([0.0]), np.array([-1e4]), low=0.0, high=1000.0, drop=False)).all()
