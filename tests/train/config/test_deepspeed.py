"""DeepSpeed's own options: as a mapping, or in the JSON file that people have for the Hugging Face Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import ConfigError, MtError
from mt_core.plugins.host import PluginHost
from mt_train.config.deepspeed import DeepSpeedOptions
from mt_train.config.run import RunConfig
from mt_train.plugins.resolve import resolve

AUTO = {
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "auto", "params": {"lr": "auto", "betas": "auto"}},
    "zero_optimization": {"stage": "auto", "reduce_bucket_size": 5e8, "overlap_comm": True},
}


def resolved(options: Any) -> RunConfig:
    return resolve({"model": "llama", "parallel": {"deepspeed": options}}, PluginHost.discover()).config


def test_a_file_is_read_once_and_its_auto_is_left_to_the_run(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(AUTO))
    config = resolved(str(file))
    wanted = {"reduce_bucket_size": 500_000_000, "overlap_comm": True}
    assert config.parallel.deepspeed == DeepSpeedOptions(zero_optimization=wanted)  # type: ignore[arg-type]
    file.unlink()
    assert resolved(config.as_raw()["parallel"]["deepspeed"]) == config, "the run has what it said"


def test_every_key_that_the_run_says_is_named_with_its_own() -> None:
    options = {**AUTO, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "train_batch_size": 8}
    options["zero_optimization"] = {"stage": 2, "contiguous_gradients": True}
    with pytest.raises(ConfigError) as caught:
        resolved(options)
    said = str(caught.value)
    for text in (
        "train_batch_size is for the run to say; set train.global_batch_size",
        "optimizer is for the run to say; set optimizer",
        "stage is for the run to say; set parallel.zero_stage",
        "contiguous_gradients is not needed here; take it out",
    ):
        assert text in said
    assert "gradient_clipping" not in said, "it is auto"


@pytest.mark.parametrize("section", ["flops_profiler", "comms_logger", "elasticity"])
def test_a_section_that_is_not_known_is_named_and_no_key_in_it_is_taken_for_a_precision(section: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved({section: {"enabled": True}})
    said = str(caught.value)
    assert section in said.replace("-", "_")
    assert "train.dtype" not in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "parallel.deepspeed: cannot read .*ds.json.*: No such file or directory; check the path"),
        ("{", "parallel.deepspeed: .*ds.json.* is no JSON"),
        ("[]", "parallel.deepspeed: should be a mapping such as {key: value}"),
        ('{"zero_optimization": {"reduce_buckets": 2}}', "Did you mean 'reduce-bucket-size'?"),
    ],
)
def test_a_file_that_cannot_be_gets_one_message(content: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(MtError, match=says.replace("?", "[?]")):
        resolved(str(file))


def test_gradients_are_reduced_in_one_way() -> None:
    """DeepSpeed reads the second key only where the first is true; ``--plan`` would count half the bytes that travel."""
    keys = {"reduce_scatter": False, "use_multi_rank_bucket_allreduce": False}
    with pytest.raises(
        ValueError, match="use_multi_rank_bucket_allreduce false does nothing with reduce_scatter false"
    ):
        DeepSpeedOptions.model_validate({"zero_optimization": keys})
    for key in keys:
        DeepSpeedOptions.model_validate({"zero_optimization": {key: False}})
