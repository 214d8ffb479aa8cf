"""What a component may declare."""

from __future__ import annotations

import pytest

from mt_core import ComponentError, OptimizerComponent


def test_a_gradient_transform_is_refused_when_it_is_offered() -> None:
    with pytest.raises(ComponentError, match="does not apply yet; declare it whole_parameter"):
        OptimizerComponent(name="shampoo", summary="full gradients", form="gradient_transform")
