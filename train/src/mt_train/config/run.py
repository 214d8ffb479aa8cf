"""A run as one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError

from mt_core.config.base import ModelConfig, MtConfig, Patterns
from mt_core.config.faults import faults_of
from mt_core.errors import ConfigError
from mt_core.kinds import CORE_KINDS
from mt_train.config.data import DataConfig
from mt_train.config.sections import CheckpointConfig, EvalConfig, LogConfig, ParallelConfig, TrainConfig

SECTIONS: dict[str, type[MtConfig]] = {
    "data": DataConfig,
    "train": TrainConfig,
    "parallel": ParallelConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
    "log": LogConfig,
}


def _folders(value: Any) -> Any:
    """``A,B``, as a command line has it, is two folders."""
    if isinstance(value, str):
        return tuple(folder for part in value.split(",") if (folder := part.strip()))
    return () if value is None else value


Folders = Annotated[tuple[str, ...], BeforeValidator(_folders)]


class SlotRef(MtConfig):
    """A chosen component and its validated options."""

    name: str
    options: SerializeAsAny[MtConfig]

    def as_raw(self) -> dict[str, Any]:
        """Return it as it is written in YAML: the name and the options side by side."""
        return {"name": self.name, **self.options.model_dump(mode="json")}


class ModelOptions(MtConfig):
    """The keys of the model slot that belong to the core."""

    variant: str | None = Field(None, description="named size of the family")
    weights: str | None = Field(
        None, description="folder, file or Hub name (org/name@revision) of weights; the shape comes from its config"
    )
    overlay: str | None = Field(None, description="safetensors file or folder of a trained part, put on top; it wins")
    adapters: Folders = Field(
        (),
        description="folders of adapters (peft's, exported ones, runs, checkpoints), A,B or a list, that are merged into the weights"
        " in this order while they are read, under the run's own adapter",
    )
    allow_missing: Patterns = Field((), description="patterns (* and ?) of parameters that weights may lack")
    allow_unexpected: Patterns = Field((), description="patterns (* and ?) of left-over weights to ignore")


class ModelRef(SlotRef):
    """The model: its family, where its weights come from, and its shape."""

    options: SerializeAsAny[ModelConfig]
    source: ModelOptions = Field(default_factory=ModelOptions)

    def as_raw(self) -> dict[str, Any]:
        core = {key: value for key, value in self.source.model_dump(mode="json").items() if value not in (None, [], ())}
        return {"name": self.name, **core, **self.options.model_dump(mode="json")}


class AdapterOptions(MtConfig):
    """The keys of the adapter slot that belong to the trainer."""

    weights: str | None = Field(
        None,
        description="folder of an adapter (peft's, an exported one, a run, a checkpoint) whose values the run's begins with; its"
        " method and options are the default",
    )


class AdapterRef(SlotRef):
    """The adapter: its method and options, and where its first values come from."""

    source: AdapterOptions = Field(default_factory=AdapterOptions)

    def as_raw(self) -> dict[str, Any]:
        return {**self.method(), **self.source.model_dump(mode="json", exclude_none=True)}

    def method(self) -> dict[str, Any]:
        """Return the name and the options, as folders of adapters have them."""
        return super().as_raw()


class RunConfig(MtConfig):
    """Everything that defines a run. ``output`` and ``resume`` are paths, and never part of ``run.yaml``."""

    model: ModelRef
    tokenizer: SlotRef
    dataset: SlotRef
    objective: SlotRef
    quantizer: SlotRef
    adapter: AdapterRef
    optimizer: SlotRef
    schedule: SlotRef
    task_print: SlotRef
    callbacks: tuple[SlotRef, ...] = ()
    trackers: tuple[SlotRef, ...] = ()
    extensions: Mapping[str, SlotRef | tuple[SlotRef, ...]] = Field(
        default_factory=dict, description="components of kinds that plugins bring, by the key of their kind"
    )
    data: DataConfig = Field(default_factory=DataConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    log: LogConfig = Field(default_factory=LogConfig)

    def __init__(self, /, **values: Any) -> None:
        """Fill every slot and section. Raises ``ConfigError`` with every fault; ``load_config`` makes one of plain data."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(faults_of(error, RunConfig, "")) from error

    def as_raw(self) -> dict[str, Any]:
        """The nested mapping that resolves to this config again: the content of ``run.yaml``."""
        raw: dict[str, Any] = {slot: getattr(self, slot).as_raw() for slot in CORE_KINDS.slots}
        several = {key: getattr(self, key) for key in CORE_KINDS.lists} | dict(self.extensions)
        for key, chosen in several.items():
            if chosen or key in CORE_KINDS.lists:  # an empty list, too: a component may suggest another one
                raw[key] = chosen.as_raw() if isinstance(chosen, SlotRef) else [each.as_raw() for each in chosen]
        return raw | {section: getattr(self, section).model_dump(mode="json") for section in SECTIONS}
