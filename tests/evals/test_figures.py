"""Standard errors are those of lm-evaluation-harness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_plugin_evals.figures import mean, mean_error, pooled_error, standard_error

VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=30)


@given(values=VALUES)
def test_of_a_mean(values: list[float]) -> None:
    metrics = pytest.importorskip("lm_eval.api.metrics")
    assert mean(values) == metrics.mean(values)
    assert standard_error(values) == metrics.mean_stderr(values)


@given(groups=st.lists(VALUES, min_size=2, max_size=5))
def test_of_several_groups(groups: list[list[float]]) -> None:
    metrics = pytest.importorskip("lm_eval.api.metrics")
    errors = [metrics.mean_stderr(group) for group in groups]
    assert pooled_error(groups) == pytest.approx(metrics.pooled_sample_stderr(errors, [*map(len, groups)]))
    assert mean_error(groups) == pytest.approx(metrics.unweighted_mean_stderr(errors))


def test_a_single_value_has_none() -> None:
    assert standard_error([1.0]) is None
    assert pooled_error([[1.0], [0.0]]) is None
    assert mean_error([[1.0], [0.0, 1.0]]) is None
