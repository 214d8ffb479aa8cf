"""The sections of a run that belong to the core and hold for any plugin."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mt_core.config.base import MtConfig, Patterns
from mt_train.config.deepspeed import DeepSpeedOptions
from mt_train.config.pace import Interval
from mt_train.config.ranks import MOST_PROCESSES
from mt_train.config.texts import TEMPLATES, template_source, text_or_file

Level = Literal["debug", "info", "warning", "error"]
Truncation = Literal["error", "drop", "left", "right", "middle", "split"]
Packing = Literal["best_fit", "sequential"]

MOST_TOKENS, MOST_ROWS = 1_073_741_824, 10_000_000
"""Most tokens of one row, and most rows at a time or in one optimizer step: more is a slip, refused before anything takes memory for it."""

PAD_MULTIPLE = 8
"""Kernels like rows of such a length, and few shapes occur."""


def count_or_auto(value: Any, most: int | None = None) -> Any:
    """Return a count as it is, and ``auto``. Raises one ``ValueError`` for anything else: a union of types would give several."""
    if value == "auto":
        return value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        allowed = "of 1 or more" if most is None else f"from 1 to {most:,}"
        raise ValueError(f"should be a whole number {allowed}, or auto; got {value!r}")
    return value


class DataConfig(MtConfig):
    """Options that hold for any dataset.

    ``None`` takes the objective's or the run's own default.
    """

    columns: dict[str, str] = Field({}, description="our field name → the name in the rows, e.g. {prompt: question}")
    media_root: str | None = Field(
        None,
        min_length=1,
        description="folder that images and other files of rows lie in; default is that of the rows' own files, and none outside is read",
    )
    media_patterns: dict[str, str] = Field(
        {},
        description="kind → regular expression: what it finds in texts of rows is media of that kind, by its group where it has one, e.g."
        " {dna: '<dna>([ACGTN]+)</dna>'}",
    )
    template: str | None = Field(
        None,
        description=f"how conversations are written down: {', '.join(TEMPLATES)}, or a Jinja file; "
        "default is plain for prompt and response, own (the tokenizer's) for anything else",
    )
    train_on: Literal["assistant", "last", "all"] = Field(
        "assistant", description="trained turns of a conversation: the assistant's, its last one, or everybody's"
    )
    system: str | None = Field(
        None, min_length=1, description="system message of conversations that have none: text, or {file: PATH}"
    )
    prefix: str = Field("", description="put before the text of each user turn (the prompt): text, or {file: PATH}")
    postfix: str = Field("", description="put after the text of each user turn (the prompt): text, or {file: PATH}")
    max_len: int | None = Field(
        None, gt=1, le=MOST_TOKENS, description="longest sample (tokens); default train.sequence_len"
    )
    max_source_len: int | None = Field(
        None, gt=0, le=MOST_TOKENS, description="longest prompt: what comes before the first trained token (tokens)"
    )
    max_target_len: int | None = Field(
        None, gt=0, le=MOST_TOKENS, description="longest trained part: from the first trained token on (tokens)"
    )
    truncation: Truncation | None = Field(
        None,
        description="what happens to a longer sample: an error, dropped, cut at the left, right or in the middle (begin and"
        " stop token stay), or split into pieces; default is the objective's",
    )
    batching: Literal["padding", "packing"] | None = Field(
        None, description="one sample a row, or several; default is the objective's"
    )
    packing: Packing = Field(
        "best_fit",
        description="how packed rows are filled: best_fit (longest samples first, each where it leaves the least room) or sequential"
        " (in their order; one that does not fit begins the next row)",
    )
    packing_features: int | None = Field(
        None,
        gt=0,
        le=MOST_TOKENS,
        description="most features that encoders make of the media of a packed row, all together; a sample with more has a row of its own",
    )
    pad_multiple: int = Field(
        PAD_MULTIPLE,
        gt=0,
        le=65_536,
        description="padded rows are as long as their longest, rounded up to this (tokens)",
    )
    eval: float | int | str | None = Field(
        0.05, description="held-out part: share (below 1), rows (1 or more), a path for dataset.path, or none"
    )
    group_by_length: bool = Field(
        False,
        description="padded rows of similar length come together, in windows of the order; fewer places are padded",
    )
    prove: bool = Field(
        False,
        description="before the first step change every second document of a batch and see that the others do not notice",
    )
    cache: str | None = Field(
        "auto",
        min_length=1,
        description="folder of encoded rows, or an address that has them (s3://bucket/tokens); auto is MT_CACHE or ~/.cache/mt/tokens for"
        " more than 50 MB of files; none is memory",
    )
    workers: int | None = Field(
        None, gt=0, le=1024, description="processes that encode rows into the cache; default is one for each processor"
    )
    shuffle: bool = Field(True, description="a new order each epoch, a function of seed and epoch only")
    shuffle_buffer: int = Field(
        1000, gt=0, le=10_000_000, description="rows of a stream that are shuffled and packed among themselves"
    )
    read_rows: int | None = Field(None, gt=0, description="only the first rows of a source; default all")
    on_bad_row: Literal["error", "skip"] = Field(
        "error", description="a row that cannot be used ends the run, or is passed over, counted and listed"
    )
    max_bad_rows: int = Field(100, gt=0, le=1_000_000, description="most rows that on_bad_row=skip may pass over")
    strict: bool = Field(False, description="warnings of the report of the rows become errors that end the run")

    @field_validator("columns", mode="before")
    @classmethod
    def _spaces(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            glued := [key for key, item in value.items() if item is None and ":" in str(key)]
        ):
            raise ValueError(f"{glued[0]!r} is read as one word; write a space after each colon: {{ours: theirs}}")
        return value

    @field_validator("media_patterns")
    @classmethod
    def _check_patterns(cls, value: dict[str, str]) -> dict[str, str]:
        for kind, pattern in value.items():
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"{pattern!r}, for {kind}, is no regular expression: {error}; repair it") from error
            if groups > 1:
                raise ValueError(
                    f"{pattern!r}, for {kind}, has {groups} groups; keep one, around the content, and write the others (?:…)"
                )
        return value

    @field_validator("system", "prefix", "postfix", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return text_or_file(value)

    @field_validator("template")
    @classmethod
    def _check_known(cls, value: str | None) -> str | None:
        return None if value is None else template_source(value)

    @field_validator("eval", mode="before")
    @classmethod
    def _part(cls, value: Any) -> Any:
        """A number, also one that YAML reads as text (2e-2), or a path."""
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                if value.strip():
                    return value
        if value is None:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"a share below 1, a number of rows, a path or none is needed, got {value!r}")
        if value <= 0:
            raise ValueError(f"a share or a number of rows is greater than 0, got {value!r}; none holds nothing out")
        if value > 1 and value != int(value):
            raise ValueError(f"{value!r} is neither a share below 1 nor a whole number of rows")
        return value

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        source, target = self.max_source_len, self.max_target_len
        if self.truncation == "split" and (source or target):
            name = "max_source_len" if source else "max_target_len"
            raise ValueError(
                f"{name} cuts a part of a sample, and truncation=split keeps all of it; set truncation to error, drop, left,"
                f" right or middle, or leave out {name}"
            )
        if self.max_len is not None and source is not None and source >= self.max_len:
            raise ValueError(
                f"max_source_len={source} leaves no room for an answer in max_len={self.max_len}; set max_source_len to"
                f" {self.max_len - 1} or less, or raise max_len and train.sequence_len"
            )
        if self.max_len is not None and target is not None and target > self.max_len:
            raise ValueError(
                f"max_target_len={target} can never be reached in max_len={self.max_len}; set max_target_len to"
                f" {self.max_len} or less, or leave it out"
            )
        return self


RECOMPUTED = ("full", "selective", "host")
"""Forms of ``train.activation_checkpointing``."""


class TrainConfig(MtConfig):
    """How long, how large and how exactly."""

    steps: int | None = Field(None, gt=0, description="optimizer steps; excludes epochs")
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
        "auto", description="ZeRO stage; auto is 0 on one rank in fp32, else 1; always 1 in a pipeline"
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
        description="who keeps the fp32 masters of bf16 at ZeRO 1; auto is this engine, in 16 bytes a parameter, where neither pipeline,"
        " expert, offload nor options of DeepSpeed's own are set",
    )
    timeout_seconds: int = Field(
        600, gt=0, le=31_536_000, description="longest time that a rank waits for the others (seconds)"
    )
    deepspeed: DeepSpeedOptions = Field(
        default_factory=DeepSpeedOptions, description="options of DeepSpeed's own, as its JSON has them"
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
    """Evaluation on the whole held-out part."""

    every_steps: int | None = Field(100, gt=0, description="optimizer steps between evaluations, and at the end")
    every_epochs: int | None = Field(
        None, gt=0, description="passes over the training rows between evaluations, in place of every_steps"
    )
    batch_size: int | None = Field(
        None, gt=0, le=MOST_ROWS, description="rows a rank evaluates at a time; default micro_batch_size"
    )
    samples: int = Field(
        2, ge=0, le=1000, description="held-out prompts that the model continues at each evaluation, into samples.jsonl"
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


LEVEL_VARIABLE = "MT_LOG_LEVEL"
"""Environment variable: ``log.console_level`` of runs that do not say it."""


class LogConfig(MtConfig):
    """Options of what a person sees while the run trains."""

    every_steps: int = Field(
        10, gt=0, description="optimizer steps between lines on the console, and records for TensorBoard and trackers"
    )
    console_level: Level = Field(
        "info", description="least urgent message on the console; warning hides the progress; by default MT_LOG_LEVEL"
    )
    file_level: Level = Field("debug", description="least urgent message in logs/rank-N.log")
