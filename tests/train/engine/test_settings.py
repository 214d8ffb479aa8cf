"""What DeepSpeed is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from deepspeed.runtime.precision_config import DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from pydantic import ValidationError

from mt_core import ConfigError
from mt_train import load_config
from mt_train.assemble import matmul
from mt_train.assemble.steps import own_torch_settings
from mt_train.config.deepspeed import DeepSpeedOptions, LossScaleOptions, ZeroOptions
from mt_train.config.sections import TrainConfig
from mt_train.engine.plan import Plan, make_plan
from mt_train.engine.settings import deepspeed_config


def plan(dtype: str = "fp32") -> Plan:
    rows = {"micro_batch_size": 4, "global_batch_size": 8}
    return Plan(world=1, device="cpu", dtype=dtype, zero_stage=2, offload="none", clip_norm=None, **rows)  # type: ignore[arg-type]


def test_options_of_deepspeeds_own_are_put_on_top() -> None:
    zero = ZeroOptions(reduce_bucket_size=7, overlap_comm=True)
    own = DeepSpeedOptions(zero_optimization=zero, wall_clock_breakdown=True)
    usual, settings = deepspeed_config(plan(), DeepSpeedOptions()), deepspeed_config(plan(), own)
    changed = {"reduce_bucket_size": 7, "overlap_comm": True}
    assert settings["zero_optimization"] == usual["zero_optimization"] | changed
    assert settings == {**usual, "zero_optimization": settings["zero_optimization"], "wall_clock_breakdown": True}


@pytest.mark.parametrize("written", [500_000_000, 5e8, "5e8"])
def test_numbers_may_be_written_as_in_deepspeeds_examples(written: Any) -> None:
    assert ZeroOptions(reduce_bucket_size=written).reduce_bucket_size == 500_000_000


@pytest.mark.parametrize("written", [0.5, "1.5", True, 0])
def test_what_is_no_number_of_elements_is_refused(written: Any) -> None:
    with pytest.raises(ValidationError):
        ZeroOptions(reduce_bucket_size=written)


def test_scales_are_told_where_a_loss_is_scaled() -> None:
    own = DeepSpeedOptions(fp16=LossScaleOptions(initial_scale_power=9))
    assert deepspeed_config(plan("fp16"), own)["fp16"] == {"enabled": True, "initial_scale_power": 9}


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ZeroOptions, DeepSpeedZeroConfig), (LossScaleOptions, DeepSpeedFP16Config)]
)
def test_deepspeed_knows_every_option_that_a_run_may_set(
    ours: type[ZeroOptions], theirs: type[DeepSpeedZeroConfig]
) -> None:
    known = {field.alias or name for name, field in theirs.model_fields.items()}
    assert set(ours.model_fields) <= known


@pytest.fixture
def precision() -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    yield before
    torch.set_float32_matmul_precision(before)


def test_tensorfloat_is_for_this_run_alone(precision: str) -> None:
    torch.set_float32_matmul_precision("medium")
    for asked, expected in ((True, "high"), (False, "highest")):
        with own_torch_settings(TrainConfig(tf32=asked), "cuda"):
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize(("has_units", "expected"), [(True, "highest"), (False, "medium")])
def test_the_kernels_of_fp32_products_are_for_this_run_alone(
    precision: str, monkeypatch: pytest.MonkeyPatch, has_units: bool, expected: str
) -> None:
    """On a CPU without matrix units that is not Intel's they are those of "medium"."""
    monkeypatch.setattr(matmul, "is_intel", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_units)
    monkeypatch.setattr(matmul, "_error", lambda: 5e-7)
    torch.set_float32_matmul_precision("high")
    with own_torch_settings(TrainConfig(), "cpu"):
        assert torch.get_float32_matmul_precision() == expected
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.usefixtures("kit_model")
def test_a_cpu_has_no_tensorfloat() -> None:
    config = load_config({"model": "kit-tiny", "train": {"tf32": True}})
    with pytest.raises(ConfigError, match=r"train\.tf32: a CPU has no TensorFloat-32\. Set it to false"):
        make_plan(config, world=1, device="cpu", offers=())
    assert make_plan(config, world=1, device="cuda", offers=()).dtype == "bf16"
