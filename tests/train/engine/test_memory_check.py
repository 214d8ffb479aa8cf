"""A model that no memory here could hold is refused before anything is allocated for it."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from media_worker import PLUGINS

from mt_conformance.host import named_host
from mt_conformance.tiny_config import TinyConfig
from mt_conformance.tiny_model import TinyModel
from mt_core.errors import ConfigError
from mt_train.assemble.parts import Parts
from mt_train.engine import memory_check
from mt_train.engine.memory_check import refuse_beyond_memory
from mt_train.engine.processes import Process
from mt_train.plugins.resolve import resolve

CPU = Process(0, 1, 0, torch.device("cpu"))


def plan(**changed: Any) -> Any:
    return SimpleNamespace(
        **{"zero_stage": 0, "sharing_ranks": 1, "pipeline": 1, "dtype": "fp32", "offload": "none"} | changed
    )


def test_the_weights_of_a_rank_decide_and_nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TinyConfig(vocab_size=1000, max_seq_len=64)
    make = partial(TinyModel, config)
    numbers = sum(parameter.numel() for parameter in make().parameters())
    monkeypatch.setattr(memory_check, "available_memory", lambda: 4 * numbers)
    refuse_beyond_memory(make, plan=plan(), process=CPU)
    monkeypatch.setattr(memory_check, "available_memory", lambda: 4 * numbers - 1)
    with pytest.raises(ConfigError, match=f"model: {numbers:,} parameters are"):
        refuse_beyond_memory(make, plan=plan(), process=CPU)
    refuse_beyond_memory(make, plan=plan(dtype="bf16"), process=CPU)
    refuse_beyond_memory(make, plan=plan(zero_stage=3, sharing_ranks=2), process=CPU)
    huge = TinyConfig(vocab_size=2**31 - 1, max_seq_len=64, dim=1_048_576)
    with pytest.raises(ConfigError, match="GB of weights a rank, and cpu has"):
        refuse_beyond_memory(partial(TinyModel, huge), plan=plan(), process=CPU)


def test_the_largest_stage_of_a_pipeline_decides_and_encoders_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder is whole on the first stage, however large it is: the mean of the stages said that it fits."""
    shape = {"vocab_size": 259, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}
    raw = {
        "model": {"name": "llama", **shape},
        "dataset": {"name": "jsonl", "path": "rows.jsonl"},
        "objective": "spelled",
    }
    raw["encoders"] = {"letters": {"projector": "pairs", "width": 256}}
    parts = Parts.of(resolve(raw, named_host(*PLUGINS)))
    model = parts.model()
    assert model.media is not None
    encoders = sum(each.numel() for each in model.media.parameters())
    first = encoders + sum(each.numel() for each in model.layers()[0].module.parameters())
    whole = sum(each.numel() for each in model.parameters())
    assert whole // 2 < first
    monkeypatch.setattr(memory_check, "available_memory", lambda: 4 * first)
    refuse_beyond_memory(parts.model, plan=plan(pipeline=2), process=CPU)
    monkeypatch.setattr(memory_check, "available_memory", lambda: 4 * first - 1)
    says = rf"^model: {first:,} parameters of stage 0 of 2 \({encoders:,} of encoders, which no cut divides\) are"
    with pytest.raises(ConfigError, match=says):
        refuse_beyond_memory(parts.model, plan=plan(pipeline=2), process=CPU)


def test_a_size_beyond_any_machine_is_one_error_of_the_command() -> None:
    words = [
        "--model",
        "llama",
        "--model.dim",
        "1048576",
        "--model.ffn-dim",
        "4194304",
        "--model.n-layers",
        "64",
        "--output",
        "none",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mt_train.cli.train", *words], capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error") == 1
    assert "GB of weights a rank" in done.stderr
