"""What a run's folder says of itself: its checkpoint is believed, its ``run.yaml`` is compared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from mt_core.errors import ConfigError
from mt_core.plugins.host import PluginHost
from mt_tools import generate
from mt_train import load_run, train
from mt_train.assemble import resume as module
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.resume import resolve_resumed
from mt_train.assemble.run_file import places_outside, run_config
from mt_train.checkpoint.manifest import write_manifest
from mt_train.config.commandline import parse
from mt_train.config.files import write_yaml
from mt_train.plugins.resolve import resolve


@cache
def host() -> PluginHost:
    return discover_plugins()


OTHER: dict[str, Any] = {
    "train.steps": 7,
    "train.epochs": 2.0,
    "train.max_minutes": 1.5,
    "train.micro_batch_size": 4,
    "train.activation_checkpointing": True,
    "train.attention": "math",
    "train.compile": True,
    "train.tf32": True,
    "train.on_nonfinite": "skip",
    "train.max_skips": 3,
    "log.every_steps": 5,
    "checkpoint.keep_last": 9,
    "checkpoint.best": "eval_loss:max",
    "eval.every_steps": None,
    "eval.samples": 0,
    "parallel.zero_stage": 2,
    "parallel.deepspeed": {"zero_optimization": {"reduce_bucket_size": 5}},
    "data.cache": "/somewhere/else",
    "data.workers": 3,
    "data.prove": True,
    "trackers": [{"name": "csv", "file": "/home/somebody/.profile"}],
    "callbacks": [{"name": "upload", "url": "/tmp/out"}],
}
"""A value for each key that a resumed run may change, other than the run's."""


BEGUN = {"tokens": 32, "position": {"epoch": 0, "row": 16}, "total_steps": 4, "callbacks": {}}
"""What a manifest has beside, of a run that may go on."""


@pytest.fixture
def config(kit_model: None) -> dict[str, Any]:
    """A resolved config, as a run writes it."""
    return resolve({"model": {"name": "kit-tiny"}, "train": {"steps": 4}}, host()).config.as_raw()


@pytest.fixture
def run(config: dict[str, Any], tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", config)


def make_run(folder: Path, config: Mapping[str, Any]) -> Path:
    """A run's folder with a checkpoint of this config, and the same as ``run.yaml``."""
    step = folder / "checkpoints" / "step-00000002"
    step.mkdir(parents=True)
    write_manifest(step, {"config": config, "layout": {"global_batch_size": 8}, **BEGUN}, step=2, save_number=1)
    (folder / "run.yaml").write_text(write_yaml(dict(config)))
    return folder


def edit(run: Path, key: str, value: Any) -> None:
    content = yaml.safe_load((run / "run.yaml").read_text())
    node = content
    *path, last = key.split(".")
    for part in path:
        node = node[part]
    node[last] = value
    (run / "run.yaml").write_text(yaml.safe_dump(content))


def resume(run: Path, *words: str) -> dict[str, Any]:
    raw = parse(words, switches=(), values=()).raw
    return resolve_resumed(raw, run, host())[0].config.as_raw()


def test_a_folder_as_it_was_left_goes_on_as_it_is(run: Path, config: dict[str, Any]) -> None:
    assert resume(run) == {**config, "train": {**config["train"], "global_batch_size": 8}}
    assert run_config(run / "checkpoints/step-00000002")["model"] == config["model"]


@pytest.mark.needs("mt-plugin-trackers")
@pytest.mark.needs("mt-plugin-callbacks")
@pytest.mark.parametrize("key", OTHER)
def test_what_only_run_yaml_says_is_refused_and_what_the_message_says_to_type_is_taken(
    run: Path, config: dict[str, Any], key: str
) -> None:
    edit(run, key, OTHER[key])
    with pytest.raises(ConfigError) as refused:
        resume(run)
    (fault,) = refused.value.faults
    assert fault.key == key.replace("_", "-")
    assert f"in {run / 'run.yaml'}, and " in fault.problem
    file, checkpoint = (shlex.split(way) for way in re.findall(r"`(.*?)`", fault.fix))
    assert pick(resume(run, *checkpoint), key) == pick(config, key)
    assert holds(pick(resume(run, *file), key), OTHER[key])


def test_a_list_that_is_none_names_no_place_outside() -> None:
    outside = {"callbacks": {"upload": {"url": "file:///there"}}}
    assert places_outside({"trackers": "none", **outside}, {}) == ["callbacks.upload.url=file:///there"]


def test_options_that_may_change_are_resolved_once_with_the_config_that_they_change(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolutions = Mock(wraps=resolve)
    monkeypatch.setattr(module, "resolve", resolutions)
    assert resume(run, "--train.steps", "9", "--callbacks", "none")["train"]["steps"] == 9
    resolutions.assert_called_once()


def test_an_option_that_is_younger_than_the_run_is_no_change_and_keeps_its_default(
    config: dict[str, Any], tmp_path: Path
) -> None:
    train = {key: value for key, value in config["train"].items() if key != "seed"}
    run = make_run(tmp_path / "run", config | {"train": train})
    assert resume(run, "--train.steps", "9", "--train.seed", "0")["train"]["seed"] == 0
    with pytest.raises(ConfigError, match=r"train\.seed: is 3, and 0 in the run"):
        resume(run, "--train.seed", "3")


@pytest.mark.needs("mt-plugin-callbacks")
def test_a_callback_whose_option_is_gone_stops_no_resume_that_leaves_it_out(
    config: dict[str, Any], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", config | {"callbacks": [{"name": "early-stopping", "gone": 1}]})
    with pytest.raises(ConfigError, match=r"callbacks\.early-stopping\.gone: no such key"):
        resume(run)
    assert resume(run, "--callbacks", "none")["callbacks"] == []


def pick(config: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    return config[section][name] if name else config.get(section)


def holds(whole: Any, part: Any) -> bool:
    """Return whether what was written is there; options that were not are beside it."""
    if isinstance(part, dict):
        return all(holds(whole[key], value) for key, value in part.items())
    return all(map(holds, whole, part)) if isinstance(part, list) else bool(whole == part)


@pytest.mark.needs("mt-plugin-trackers")
def test_a_place_beyond_the_folder_that_the_checkpoint_names_is_told(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(tmp_path / "table.csv")
    run = make_run(tmp_path / "run", config | {"trackers": [{"name": "csv", "file": table}]})
    resume(run)
    assert f"trackers.csv.file={table}" in capsys.readouterr().err
    resume(run, "--trackers", "csv", "--trackers.csv.file", table)
    assert table not in capsys.readouterr().err


@pytest.mark.parametrize(
    "key", ["dataset.name", "tokenizer.name", "model.weights", "data.system", "data.template", "optimizer.lr"]
)
def test_a_run_yaml_that_defines_another_run_is_refused_by_whatever_reads_the_run(
    run: Path, tmp_path: Path, key: str
) -> None:
    edit(run, key, {"file": str(tmp_path / "canary")})
    for read in (resume, lambda run: run_config(run / "checkpoints/step-00000002")):
        with pytest.raises(ConfigError, match=rf"{key}: is .*canary.* in the checkpoint\. One of the two"):
            read(run)


def test_a_command_that_only_reads_a_run_writes_to_no_place_that_its_folder_names(
    config: dict[str, Any], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", config | {"data": {**config["data"], "cache": str(tmp_path / "elsewhere")}})
    assert "cache" not in run_config(run / "checkpoints/step-00000002")["data"]


def test_checkpoints_from_before_a_resume_are_read_as_those_after_it(tmp_path: Path) -> None:
    """A resumed run says the rows of a step, which followed from other keys before."""
    small = {"micro_batch_size": 1, "sequence_len": 32, "steps": 2}
    raw = {"model": {"name": "llama", "n_layers": 1}, "train": small, "data": {"eval": "none", "read_rows": 8}}
    train({**raw, "checkpoint": {"keep_last": 9}}, output=tmp_path / "run")
    train({"train": {"steps": 3}}, resume=tmp_path / "run")
    texts = {step: generate(load_run(tmp_path / "run", checkpoint=step), "The ", greedy=True) for step in (2, 3)}
    assert all(len(each) == 1 for each in texts.values())
    other = tmp_path / "run" / "run.yaml"
    other.write_text(other.read_text().replace("global_batch_size: 1", "global_batch_size: 4"))
    with pytest.raises(ConfigError, match=r"train\.global-batch-size: is 4 in .*, and 1 in the checkpoint"):
        load_run(tmp_path / "run", checkpoint=2)
