"""The norm of gradients is the same however they are cut."""

from __future__ import annotations

import pytest
import torch

from mt_train.engine import norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_add_up_to_the_norm_in_fp64_however_the_gradient_is_cut(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-14: fp64 rounds to 1e-16, and a sum of some thousand numbers in any order keeps 14 digits."""
    monkeypatch.setattr(norms, "SQUARED_AT_ONCE", 1000)
    gradients = [torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype) for size in (3001, 7, 1000)]
    exact = torch.cat(gradients).double().square().sum().item()
    for cut in (gradients, [torch.cat(gradients)]):
        found = norms.squares(cut)
        assert all(each.dtype == torch.float64 for each in found)
        assert sum(each.item() for each in found) == pytest.approx(exact, rel=1e-14)
    assert norms.squares([]) == []


def test_the_many_norms_that_a_gpu_computes_at_once_are_those_in_fp64() -> None:
    gradients = [torch.randn(size).bfloat16() for size in (70_000, 7)]
    found = torch._foreach_norm(gradients, 2, torch.float64)
    assert [each.item() for each in found] == pytest.approx(
        [each.double().norm().item() for each in gradients], rel=1e-14
    )
