"""Options of DeepSpeed's own: what makes a run faster or smaller, and changes nothing of what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import expanduser
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, Strict, model_validator

from mt_core.config.base import MtConfig
from mt_core.errors import show_value
from mt_core.files.strict_json import parse_json
from mt_train.config.reading import read_small_text

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
NOT_NEEDED = frozenset(
    {
        "contiguous_gradients",
        "round_robin_gradients",
        "stage3_gather_16bit_weights_on_model_save",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
    }
)
"""Keys of DeepSpeed's that configs of others have, for what is always so here."""
SECTIONS = ("fp16", "zero_optimization")
"""Sections with keys of ``SAID_BY``; ``enabled`` of another one is no precision."""
AUTO = "auto"
"""The value in configs for the Hugging Face Trainer where its own options count; here those of the run do."""


def _read_whole(value: Any) -> Any:
    """``5e8``, as everybody writes it in DeepSpeed's JSON: a float, and to YAML a text."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(number) if isinstance(number, float) and number.is_integer() else value


Count = Annotated[int, BeforeValidator(_read_whole), Strict()]


class _OwnKeys(MtConfig):
    """Keys of DeepSpeed's config; one that is ``None`` or ``auto`` stays as this framework sets it."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_repetition(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        if refused := list(_refusals(raw)):
            raise ValueError(". ".join(refused))
        return {key: value for key, value in raw.items() if not _is_left_to_the_run(value)}


def _refusals(raw: dict[str, Any]) -> Iterator[str]:
    """Say of each key that has no place here, those of ``SECTIONS`` included, where the run says it."""
    for key, value in raw.items():
        if _is_left_to_the_run(value):
            continue
        if key in SAID_BY:
            yield f"{key} is for the run to say; set {SAID_BY[key]}"
        elif key in NOT_NEEDED:
            yield f"{key} is not needed here; take it out"
        elif isinstance(value, dict) and key in SECTIONS:
            yield from _refusals(value)


def _is_left_to_the_run(value: Any) -> bool:
    """Return whether a value is ``auto``, or a section of nothing else: ``bf16: {enabled: auto}``."""
    return value == AUTO or (isinstance(value, dict) and bool(value) and all(map(_is_left_to_the_run, value.values())))


class ZeroOptions(_OwnKeys):
    """``zero_optimization``: how much travels at once, and when."""

    reduce_bucket_size: Count | None = Field(None, gt=0, description="gradients that are reduced at once (numbers)")
    allgather_bucket_size: Count | None = Field(None, gt=0, description="weights that are gathered at once (numbers)")
    overlap_comm: bool | None = Field(None, description="gradients travel while the backward goes on")
    reduce_scatter: bool | None = Field(None, description="gradients go to the rank that needs them, not to all")
    use_multi_rank_bucket_allreduce: bool | None = Field(
        None,
        description="false: at stage 2 (in fp32 also 1) gradients are reduced to the rank that needs them, half the bytes in more calls",
    )
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

    @model_validator(mode="after")
    def _one_way_of_reducing(self) -> Self:
        if self.reduce_scatter is False and self.use_multi_rank_bucket_allreduce is False:
            raise ValueError(
                "use_multi_rank_bucket_allreduce false does nothing with reduce_scatter false, where each gradient goes to all"
                " ranks; leave reduce_scatter out for half the bytes, or use_multi_rank_bucket_allreduce"
            )
        return self


class LossScaleOptions(_OwnKeys):
    """``fp16``: how the scale is found that keeps gradients from vanishing."""

    initial_scale_power: int | None = Field(None, ge=0, le=32, description="the first scale is 2 to this power")
    loss_scale_window: int | None = Field(None, gt=0, description="steps without an overflow that double the scale")
    hysteresis: int | None = Field(None, gt=0, description="overflows before the scale is halved")
    min_loss_scale: float | None = Field(None, gt=0, description="the scale never falls below it")


class DeepSpeedOptions(_OwnKeys):
    """Named and nested as in DeepSpeed's JSON (https://www.deepspeed.ai/docs/config-json), or the path of such a file."""

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, raw: Any) -> Any:
        if not isinstance(raw, str) or not raw:
            return raw
        try:
            return parse_json(read_small_text(Path(expanduser(raw)), "utf-8-sig"))
        except OSError as error:
            raise ValueError(f"cannot read {show_value(raw)}: {error.strerror}; check the path") from error
        except ValueError as error:
            raise ValueError(f"{show_value(raw)} is no JSON: {error}; correct the file") from error

    zero_optimization: ZeroOptions = Field(
        default_factory=ZeroOptions, description="how much travels at once, and when"
    )
    fp16: LossScaleOptions = Field(default_factory=LossScaleOptions, description="how the scale of the loss is found")
    communication_data_type: Literal["fp32", "bf16", "fp16"] | None = Field(
        None, description="precision in which gradients travel"
    )
    wall_clock_breakdown: bool | None = Field(None, description="DeepSpeed prints what each part of a step takes")
    memory_breakdown: bool | None = Field(None, description="DeepSpeed prints what each part of a step holds")
