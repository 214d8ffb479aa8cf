"""fp32 products of a CPU go to faster kernels where these keep fp32, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mt_train.assemble import matmul
from mt_train.assemble.matmul import keeps_fp32, matmul_precision


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_a_cpu_with_matrix_units_keeps_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """There "medium" computes in bf16; nothing is even tried."""
    monkeypatch.setattr(matmul, "_error", lambda: pytest.fail("a product was made"))
    assert not keeps_fp32("medium", has_amx=lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert matmul_precision("cpu", tf32=False) == "highest"


@pytest.mark.parametrize(("error", "kept"), [(5.7e-7, True), (2.1e-6, False), (2.9e-3, False), (float("nan"), False)])
def test_what_a_product_is_off_by_decides(monkeypatch: pytest.MonkeyPatch, error: float, kept: bool) -> None:
    """oneDNN's fp32, a little too much, bf16, and no number; measured under the setting, which is then as it was."""
    seen = []
    monkeypatch.setattr(matmul, "_error", lambda: seen.append(torch.get_float32_matmul_precision()) or error)
    torch.set_float32_matmul_precision("high")
    assert keeps_fp32("medium", has_amx=lambda: False) is kept
    assert seen == ["medium"]
    assert torch.get_float32_matmul_precision() == "high"


def test_the_measured_product_tells_fp32_from_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("highest")
    assert matmul._error() <= matmul.MOST_ERROR
    honest = torch.mm
    monkeypatch.setattr(torch, "mm", lambda one, other: honest(one.bfloat16(), other.bfloat16()).float())
    assert matmul._error() > 1e-3


def test_a_torch_that_cannot_say_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert not keeps_fp32("medium")


@pytest.mark.parametrize(("tf32", "expected"), [(True, "high"), (False, "highest")])
def test_other_devices_have_what_tf32_says(tf32: bool, expected: str) -> None:
    assert matmul_precision("cuda", tf32=tf32) == expected
