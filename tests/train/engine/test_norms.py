"""The norm of gradients is the same however they are cut, and by either way to compute it."""

from __future__ import annotations

import pytest
import torch

from mt_train.engine import norms

CPU = torch.device("cpu")


@pytest.mark.parametrize("by_kernel", [False, True], ids=["piece by piece", "as on a GPU"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_add_up_in_fp64_however_the_gradient_is_cut(
    dtype: torch.dtype, by_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-14: fp64 rounds to 1e-16, and a sum of some thousand numbers in any order keeps 14 digits."""
    monkeypatch.setattr(norms, "SQUARED_AT_ONCE", 1000)
    monkeypatch.setattr(norms, "_has_kernel", lambda gradient: by_kernel)
    gradients = [torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype) for size in (3001, 7, 1000)]
    exact = torch.cat(gradients).double().square().sum().item()
    for cut in (gradients, [torch.cat(gradients)]):
        found = norms.squared_norm(iter(cut), CPU)
        assert found.dtype == torch.float64
        assert found.item() == pytest.approx(exact, rel=1e-14)
    assert norms.squared_norm([], CPU).item() == 0
