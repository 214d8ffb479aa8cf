"""Options of DeepSpeed's own: what makes a run faster or smaller, and changes nothing of what is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, model_validator

from mt_core.config.base import MtConfig

SAID_BY = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.global_batch_size",
    "gradient_clipping": "train.clip_norm",
    "optimizer": "optimizer",
    "scheduler": "schedule",
    "bf16": "train.dtype",
    "enabled": "train.dtype",
    "stage": "parallel.zero_stage",
    "offload_optimizer": "parallel.offload",
    "offload_param": "parallel.offload",
    "activation_checkpointing": "train.activation_checkpointing",
    "steps_per_print": "log.every_steps",
    "tensorboard": "trackers",
    "wandb": "trackers",
    "csv_monitor": "trackers",
}
"""Key of DeepSpeed's → the key of a run that says it."""


def _read_whole(value: Any) -> Any:
    """``5e8``, as everybody writes it in DeepSpeed's JSON: a float, and to YAML a text."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(number) if isinstance(number, float) and number.is_integer() else value


Count = Annotated[int, BeforeValidator(_read_whole), Strict()]


class _OwnKeys(MtConfig):
    """Keys of DeepSpeed's config; one that is ``None`` stays as this framework sets it."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_repetition(cls, raw: Any) -> Any:
        said = [key for key in raw if key in SAID_BY] if isinstance(raw, dict) else []
        if said:
            raise ValueError(f"{said[0]} is for the run to say; set {SAID_BY[said[0]]}")
        return raw


class ZeroOptions(_OwnKeys):
    """``zero_optimization``: how much travels at once, and when."""

    reduce_bucket_size: Count | None = Field(None, gt=0, description="gradients that are reduced at once (numbers)")
    allgather_bucket_size: Count | None = Field(None, gt=0, description="weights that are gathered at once (numbers)")
    overlap_comm: bool | None = Field(None, description="gradients travel while the backward goes on")
    reduce_scatter: bool | None = Field(None, description="gradients go to the rank that needs them, not to all")
    sub_group_size: Count | None = Field(None, gt=0, description="weights that are updated at once, stage 3 (numbers)")
    stage3_prefetch_bucket_size: Count | None = Field(
        None, ge=0, description="weights that are gathered ahead of the layer that needs them (numbers)"
    )
    stage3_max_live_parameters: Count | None = Field(
        None, ge=0, description="most weights that a rank has whole (numbers)"
    )
    stage3_max_reuse_distance: Count | None = Field(
        None, ge=0, description="whole weights that are needed again this soon are kept (numbers)"
    )


class LossScaleOptions(_OwnKeys):
    """``fp16``: how the scale is found that keeps gradients from vanishing."""

    initial_scale_power: int | None = Field(None, ge=0, le=32, description="the first scale is 2 to this power")
    loss_scale_window: int | None = Field(None, gt=0, description="steps without an overflow that double the scale")
    hysteresis: int | None = Field(None, gt=0, description="overflows before the scale is halved")
    min_loss_scale: float | None = Field(None, gt=0, description="the scale never falls below it")


class DeepSpeedOptions(_OwnKeys):
    """Named and nested as in DeepSpeed's JSON (https://www.deepspeed.ai/docs/config-json)."""

    zero_optimization: ZeroOptions = Field(
        default_factory=ZeroOptions, description="how much travels at once, and when"
    )
    fp16: LossScaleOptions = Field(default_factory=LossScaleOptions, description="how the scale of the loss is found")
    communication_data_type: Literal["fp32", "bf16", "fp16"] | None = Field(
        None, description="precision in which gradients travel"
    )
    wall_clock_breakdown: bool | None = Field(None, description="DeepSpeed prints what each part of a step takes")
    memory_breakdown: bool | None = Field(None, description="DeepSpeed prints what each part of a step holds")
