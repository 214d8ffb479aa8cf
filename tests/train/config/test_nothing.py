"""``none`` in a file, on the command line and from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import Field

from mt_core import MtConfig
from mt_core.config.rope import RopeScaling
from mt_train import RunConfig, load_config
from mt_train.config.files import read_config


class Options(MtConfig):
    count: int | None = Field(3, gt=0, description="of something")
    path: str | None = Field("a", description="of something")
    kind: Literal["none", "some"] = Field("some", description="of something")
    either: Literal["none", "some"] | None = Field("some", description="of something")
    text: str = Field("a", description="of something")


@pytest.mark.parametrize("said", [None, "none"])
def test_it_is_null_where_a_field_may_be_null_and_else_the_choice_of_that_name(said: str | None) -> None:
    given: dict[str, Any] = {"count": said, "path": said, "kind": said, "either": said}
    read = Options(**given)
    assert (read.count, read.path, read.kind, read.either) == (None, None, "none", said)


def test_text_that_is_always_there_may_say_none() -> None:
    assert Options(text="none").text == "none"


KEYS = {
    "data": {"eval": "none", "cache": "none", "max_len": "none", "batching": "none"},
    "train": {"clip_norm": "none", "steps": "none", "epochs": 2},
    "parallel": {"offload": "none"},
    "eval": {"every_steps": "none"},
    "adapter": {"name": "lora", "targets": "none"},
    "quantizer": "none",
}


def write(config: RunConfig) -> str:
    return yaml.safe_dump(config.as_raw())


@pytest.mark.usefixtures("kit_model")
def test_a_file_means_what_the_command_line_means(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"model": "kit-tiny", **KEYS}))
    config = load_config(read_config(file))
    assert (config.data.eval, config.data.cache, config.train.clip_norm, config.parallel.offload) == (
        None,
        None,
        None,
        "none",
    )
    assert (config.data.max_len, config.data.batching) == (config.train.sequence_len, "packing"), "the objective's own"
    nulls = {
        key: {k: None if v == "none" else v for k, v in value.items()}
        for key, value in KEYS.items()
        if key != "quantizer"
    }
    assert write(load_config({"model": "kit-tiny", **nulls})) == write(config)
    assert write(load_config(yaml.safe_load(write(config)))) == write(config)


def test_a_kind_of_scaling_is_a_word() -> None:
    assert RopeScaling(type="none").type == "none"


@pytest.mark.usefixtures("kit_model")
def test_epochs_take_the_place_of_steps_that_nobody_asked_for() -> None:
    config = load_config({"model": "kit-tiny", "eval": {"every_epochs": 2}, "checkpoint": {"every_epochs": 1}})
    assert (config.eval.every_steps, config.eval.every_epochs) == (None, 2)
    assert (config.checkpoint.every_steps, config.checkpoint.every_epochs) == (None, 1)
    assert load_config(config.as_raw()) == config
    back = load_config(config.as_raw(), eval={"every_steps": 7}, checkpoint={"every_epochs": "none"})
    assert (back.eval.every_steps, back.eval.every_epochs) == (7, None)
    assert (back.checkpoint.every_steps, back.checkpoint.every_epochs) == (None, None), "at the end only"
