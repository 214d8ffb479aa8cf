"""The sections of a run that belong to the core and hold for any plugin, but for ``data`` (``config.data``)."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mt_core.config.base import MtConfig, Patterns
from mt_train.config.bounds import MOST_ROWS, MOST_STEPS, MOST_TOKENS, count_or_auto
from mt_train.config.deepspeed import DeepSpeedOptions
from mt_train.config.pace import Interval
from mt_train.config.ranks import MOST_PROCESSES

Level = Literal["debug", "info", "warning", "error"]

RECOMPUTED = ("full", "selective", "host")
"""Forms of ``train.activation_checkpointing``."""


class TrainConfig(MtConfig):
    """How long, how large and how exactly."""

    steps: int | None = Field(None, gt=0, le=MOST_STEPS, description="optimizer steps; excludes epochs")
    epochs: float | None = Field(None, gt=0, description="passes over the training rows; default 1 without steps")
    max_minutes: float | None = Field(
        None, gt=0, description="save and end with code 75 after so long (minutes), to be resumed"
    )
    sequence_len: int = Field(256, gt=1, le=MOST_TOKENS, description="length of a row (tokens)")
    micro_batch_size: int | Literal["auto"] = Field(
        8, description="rows that one rank computes at a time; auto tries how many its memory holds, before the run"
    )
    global_batch_size: int | None = Field(
        None,
        gt=0,
        le=MOST_ROWS,
        description="rows of one optimizer step over all ranks; default micro_batch_size × data ranks",
    )
    clip_norm: float | None = Field(1.0, gt=0, description="largest norm of the whole gradient; none switches it off")
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field("auto", description="auto is bf16 on a GPU, fp32 on a CPU")
    seed: int = Field(0, ge=0, description="seed of weights, order and dropout")
    enable: Patterns = Field(
        (), description="patterns (* and ?) of parameters that are trained besides those of the adapter"
    )
    disable: Patterns = Field(
        (), description="patterns (* and ?) of parameters that stay as they are; wins over enable"
    )
    deterministic: bool = Field(False, description="only kernels that give the same bits each time")
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop", description="a loss or gradient that is no number ends the run, or passes over its rows"
    )
    max_skips: int = Field(10, gt=0, description="most steps that on_nonfinite=skip may pass over before the run ends")
    activation_checkpointing: bool | Literal["full", "selective", "host"] = Field(
        False,
        description="recompute blocks in the backward, to save memory: full (true) keeps the input of each; selective also what attention"
        " gave; host has inputs wait in host memory",
    )
    mlp_tile_tokens: int | None = Field(
        None,
        gt=0,
        le=MOST_TOKENS,
        description="tokens that an MLP computes at a time, for long rows; none is all of them",
    )
    attention: Literal["auto", "math", "efficient", "flash", "flash3"] = Field(
        "auto",
        description="attention kernel; auto is the fastest of torch's own that device, precision and model allow, flash3 an installed"
        " FlashAttention 3 in its place (Hopper's GPUs)",
    )
    compile: bool = Field(False, description="torch.compile on each block")
    kernels: Literal["torch", "liger"] = Field(
        "torch",
        description="norms, gated activations and rotary turns: by torch's operations, or in one kernel each of an installed liger-kernel"
        " (a GPU, without train.compile)",
    )
    matmul: Literal["auto", "fp8"] = Field(
        "auto",
        description="products of the blocks' linear layers: auto is in the run's precision, fp8 in 8 bits (bf16 runs; GPUs from Ada on)",
    )
    fp8_min_size: int = Field(
        16_777_216,
        gt=0,
        description="smallest weight that matmul=fp8 concerns (numbers); below it casts cost more than they save",
    )
    tf32: bool = Field(
        False, description="fp32 products in TensorFloat-32 on a GPU that has it: 10 bits of mantissa instead of 23"
    )

    @field_validator("micro_batch_size", mode="before")
    @classmethod
    def _count_or_auto(cls, value: Any) -> Any:
        return count_or_auto(value, MOST_ROWS)

    @field_validator("activation_checkpointing", mode="before")
    @classmethod
    def _truth_or_form(cls, value: Any) -> Any:
        """Said once, as above."""
        if not isinstance(value, bool) and value not in RECOMPUTED:
            raise ValueError(f"should be {', '.join(RECOMPUTED)}, true (full) or false; got {value!r}")
        return value

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"steps={self.steps} and epochs={self.epochs} are both set; keep one of them")
        return self

    @model_validator(mode="after")
    def _rows_of_a_step(self) -> Self:
        if self.micro_batch_size == "auto" and self.global_batch_size is None:
            raise ValueError(
                "micro_batch_size=auto leaves the rows of a step to the memory of a machine; set global_batch_size too"
            )
        return self

    @property
    def recomputed(self) -> str | None:
        """Return which form of ``activation_checkpointing`` it is; ``None`` without."""
        return "full" if self.activation_checkpointing is True else self.activation_checkpointing or None

    @property
    def rows_at_a_time(self) -> int:
        """``micro_batch_size``; 1 while it is still to be found, which divides any number of rows."""
        return 1 if self.micro_batch_size == "auto" else self.micro_batch_size


class ParallelConfig(MtConfig):
    """How the run is laid out over its processes."""

    zero_stage: Literal["auto", 0, 1, 2, 3] = Field(
        "auto",
        description="ZeRO stage; auto is 0 on one rank in fp32 and for optimizers of whole parameters, else 1; always 1 in a pipeline",
    )
    pipeline: int = Field(
        1, gt=0, le=MOST_PROCESSES, description="stages that the layers are divided into, each on its own ranks"
    )
    sequence: int = Field(
        1,
        gt=0,
        le=MOST_PROCESSES,
        description="ranks that share each row, every one with a part of its tokens (Ulysses)",
    )
    expert: int = Field(
        1,
        gt=0,
        le=MOST_PROCESSES,
        description="ranks that divide the experts of each layer, and send one another the tokens that chose them",
    )
    offload: Literal["none", "optimizer", "parameters"] = Field(
        "none", description="what lives in host memory: optimizer state (stages 1-3), parameters too (stage 3)"
    )
    masters: Literal["auto", "deepspeed"] = Field(
        "auto",
        description="who keeps the fp32 masters of bf16 at ZeRO 0 and 1; auto is this engine, in 16 bytes a parameter, where neither"
        " pipeline, expert, offload nor options of DeepSpeed's own are set",
    )
    timeout_seconds: int = Field(
        600, gt=0, le=31_536_000, description="longest time that a rank waits for the others (seconds)"
    )
    deepspeed: DeepSpeedOptions = Field(
        default_factory=DeepSpeedOptions,
        description="options of DeepSpeed's own, as its JSON has them, or the path of such a file",
    )

    @model_validator(mode="before")
    @classmethod
    def _divides_no_layer(cls, raw: Any) -> Any:
        """Refuse tensor ranks by name, with the layouts that do what they are wanted for."""
        if isinstance(raw, dict) and (
            asked := next((key for key in ("tensor", "tensor_parallel", "tp") if key in raw), None)
        ):
            raise ValueError(
                f"{asked}: no layer is divided into columns and rows here; zero_stage=3 divides weights, sequence the activations of"
                " long rows, pipeline the layers, and expert the experts of a mixture"
            )
        return raw


class EvalConfig(Interval):
    """Evaluation on the held-out part."""

    every_steps: int | None = Field(100, gt=0, description="optimizer steps between evaluations, and at the end")
    every_epochs: int | None = Field(
        None, gt=0, description="passes over the training rows between evaluations, in place of every_steps"
    )
    limit: int | None = Field(
        None,
        gt=0,
        description="most held-out rows that are evaluated: of a share or number the ones drawn first, else the first ones; default all",
    )
    batch_size: int | None = Field(
        None, gt=0, le=MOST_ROWS, description="rows a rank evaluates at a time; default micro_batch_size"
    )
    samples: int = Field(
        2,
        ge=0,
        le=1000,
        description="held-out prompts that the model continues at each evaluation, into samples.jsonl; none in a pipeline or with"
        " sequence ranks",
    )
    sample_tokens: int = Field(48, gt=0, le=MOST_TOKENS, description="longest continuation of such a prompt (tokens)")


class CheckpointConfig(Interval):
    """Options of checkpoints: what is saved, and when."""

    every_steps: int | Literal["auto"] | None = Field(
        500,
        description="optimizer steps between saves, and at the end; auto measures what a save costs, and loses least time to saves and"
        " failures together",
    )
    every_epochs: int | None = Field(
        None, gt=0, description="passes over the training rows between saves, in place of every_steps"
    )
    keep_last: int = Field(2, gt=0, description="newest checkpoints kept; older ones go after a verified save")
    keep_best: int = Field(1, ge=0, description="best checkpoints kept beside those, of the ones with an evaluation")
    best: str = Field(
        "eval_loss:min", pattern=r"^[a-z][a-z0-9_]*:(min|max)$", description="what best means: a figure, and min or max"
    )
    background: bool = Field(
        False, description="write while training goes on, from a copy in host memory (weights and optimizer state)"
    )
    trainable_only: bool | None = Field(
        None,
        description="leave out weights that are not trained; a resumed run reads them from model.weights again. none: where an"
        " adapter leaves most of the weights as model.weights has them",
    )

    @field_validator("every_steps", mode="before")
    @classmethod
    def _count_or_auto(cls, value: Any) -> Any:
        return None if value is None else count_or_auto(value)


LEVEL_VARIABLES = {"console_level": "MT_LOG_LEVEL", "file_level": "MT_LOG_FILE_LEVEL"}
"""Key of ``log`` → environment variable that has its value for runs that do not say it."""


class LogConfig(MtConfig):
    """Options of what a person sees while the run trains."""

    every_steps: int = Field(
        10, gt=0, description="optimizer steps between lines on the console, and records for TensorBoard and trackers"
    )
    console_level: Level = Field(
        "info", description="least urgent message on the console; warning hides the progress; by default MT_LOG_LEVEL"
    )
    file_level: Level = Field(
        "debug", description="least urgent message in logs/rank-N.log; by default MT_LOG_FILE_LEVEL"
    )
