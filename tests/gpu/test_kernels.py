"""What must hold on a GPU: the checks of ``benchmarks/gpu.py``, and what its kernels alone can show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_checks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="this machine has no GPU; run pytest -m gpu tests/gpu on one"
    ),
]


def test_every_form_of_attention_equals_fp64_within_bf16(tmp_path: Path) -> None:
    assert set(gpu_checks.attention(tmp_path)) == set(gpu_checks.FORMS)


def test_compiled_blocks_train_the_same_and_no_packing_compiles_them_anew(tmp_path: Path) -> None:
    found = gpu_checks.compiled_blocks(tmp_path)
    assert (found["graphs"], found["breaks"]) == (1, 0)


def test_ligers_kernels_equal_ours(tmp_path: Path) -> None:
    pytest.importorskip("liger_kernel")
    assert len(gpu_checks.liger(tmp_path)) == 14


def test_the_loss_in_chunks_equals_that_of_whole_logits(tmp_path: Path) -> None:
    gpu_checks.chunked_loss(tmp_path)


def test_norms_equal_fp64_within_their_dtype(tmp_path: Path) -> None:
    assert len(gpu_checks.norms(tmp_path)) == 6


def test_the_norm_of_gradients_is_summed_in_fp64(tmp_path: Path) -> None:
    gpu_checks.gradient_norm(tmp_path)


def test_every_adapter_takes_two_steps(tmp_path: Path) -> None:
    assert gpu_checks.adapters(tmp_path)["adapters"] > 50


def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    gpu_checks.resume(tmp_path)


def test_twenty_steps_in_fp32_equal_those_of_the_host(tmp_path: Path) -> None:
    """To 1e-4: sums of other orders, over 20 updates."""
    script = Path(gpu_checks.__file__).with_name("gpu.py")
    command = [sys.executable, str(script), "check", "--case", "fp32-on-the-host", "--weights", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 0, done.stderr
    host = json.loads(done.stdout.splitlines()[-1])["losses"]
    assert gpu_checks.losses_in_fp32(tmp_path)["losses"] == pytest.approx(host, rel=1e-4)


def test_products_in_fp8_are_faster_than_in_bf16_where_they_are_large(tmp_path: Path) -> None:
    """No timed test in disguise: a kernel that is emulated is slower by far, and this says so."""
    found = gpu_checks.products(tmp_path)
    assert torch.cuda.get_device_capability() < (8, 9) or found["fp8_tflops"] > found["bf16_tflops"]
