"""fp32 products of a CPU go to faster kernels where these keep fp32, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mt_train.assemble import matmul
from mt_train.assemble.matmul import describe_bf16, keeps_fp32, matmul_precision, product_seconds
from mt_train.config.sections import TrainConfig


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
    monkeypatch.setattr(matmul, "is_intel", lambda: False)
    assert matmul_precision("cpu", tf32=False) == "highest"


@pytest.mark.parametrize(
    ("vendor", "expected"), [("GenuineIntel", "highest"), ("AuthenticAMD", "medium"), (None, "medium")]
)
def test_an_intel_processor_keeps_the_products_of_mkl(
    vendor: str | None, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are the faster ones there; ``None`` is a system that does not say."""
    cpuinfo = tmp_path / "cpuinfo"
    if vendor:
        cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    found = matmul.is_intel(cpuinfo)
    monkeypatch.setattr(matmul, "is_intel", lambda: found)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(matmul, "_error", lambda: 6e-7)
    assert matmul_precision("cpu", tf32=False) == expected


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


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Features of the processor, and products that take 8 and 2 seconds."""
    found = {"avx512_bf16"}
    monkeypatch.setattr(matmul, "processor_has", lambda *names: bool(found & set(names)))
    monkeypatch.setattr(matmul, "product_seconds", lambda dtype: {torch.float32: 8.0, torch.bfloat16: 2.0}[dtype])
    return found


def test_a_run_in_fp32_says_what_products_of_bf16_would_gain(features: set[str]) -> None:
    torch.set_float32_matmul_precision("high")
    note = describe_bf16(TrainConfig(), "cpu")
    assert "Matrix products would be about 4 times as fast in bf16" in note
    assert "--train.dtype bf16" in note
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize(("dtype", "device"), [("fp32", "cpu"), ("bf16", "cpu"), ("auto", "cuda")])
def test_nothing_is_said_of_bf16_where_somebody_chose_or_on_a_gpu(features: set[str], dtype: str, device: str) -> None:
    assert describe_bf16(TrainConfig(dtype=dtype), device) == ""  # type: ignore[arg-type]


def test_nothing_is_said_of_bf16_where_the_processor_has_none_or_gains_nothing(
    features: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "product_seconds", lambda dtype: 1.0)
    assert describe_bf16(TrainConfig(), "cpu") == ""
    features.clear()
    monkeypatch.setattr(matmul, "product_seconds", lambda dtype: pytest.fail("a product was made"))
    assert describe_bf16(TrainConfig(), "cpu") == ""


def test_the_time_of_a_product_grows_with_it() -> None:
    assert 0 < product_seconds(torch.float32, 64) < product_seconds(torch.float32, 512) < 1
