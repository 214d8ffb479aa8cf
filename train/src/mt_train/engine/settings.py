"""DeepSpeed's configuration of a plan: a pure function."""

from __future__ import annotations

from typing import Any

from mt_train.config.deepspeed import DeepSpeedOptions
from mt_train.engine.plan import Plan

BUCKET_ELEMENTS = 50_000_000
"""Largest bucket of gradients that ZeRO reduces at once: 200 MB in fp32. DeepSpeed's own 500 million would allocate 2 GB."""

BUCKET_NUMBERS = 1 << 24
"""Numbers of a bucket of our own masters, if no parameter has more: 64 MiB in fp32 are then under way in an update."""


def deepspeed_config(plan: Plan, own: DeepSpeedOptions) -> dict[str, Any]:
    """DeepSpeed's own configuration of this plan, with what the run says of it on top."""
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": max(1, plan.micro_batches),
        "gradient_clipping": plan.clip_norm if plan.clip_norm and plan.zero_stage > 0 else 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        "zero_optimization": _zero(plan),
    }
    if plan.dtype != "fp32":
        settings[plan.dtype] = {"enabled": True}
    if plan.dtype == "bf16":
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
        settings["bf16"]["check_grad_overflow"] = (
            True  # off by default, and an infinite gradient then reaches the weights
        )
        if (
            plan.zero_stage == 1 and plan.offload == "none"
        ):  # fp32 sums, which would be rounded to bf16 before ranks add them
            settings["communication_data_type"] = "fp32"
    given = own.model_dump(exclude_none=True)
    settings["zero_optimization"] |= given.pop("zero_optimization")
    scale = given.pop("fp16")
    if "fp16" in settings:
        settings["fp16"] |= scale
    return settings | given


def _zero(plan: Plan) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": plan.zero_stage,
        "reduce_bucket_size": BUCKET_ELEMENTS,
        "allgather_bucket_size": BUCKET_ELEMENTS,
        "overlap_comm": plan.overlaps,
    }
    if plan.offload in ("optimizer", "parameters"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": plan.device == "cuda"}
    if plan.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": plan.device == "cuda"}
    if plan.zero_stage == 3:
        zero |= {
            "stage3_param_persistence_threshold": 0,
            "memory_efficient_linear": False,
            "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
            "stage3_gather_16bit_weights_on_model_save": False,
        }
    return zero
