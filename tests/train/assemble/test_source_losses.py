"""The training loss of each dataset of several, on steps that are logged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mt_train import train
from mt_train.tracking.metrics import MetricsFile

LINES = {
    "words": ["one two three", "four five", "six seven eight nine", "ten"],
    "digits": ["1 2 3 4", "5 6 7 8 9 0", "2 2"],
}
TOKENS = {name: sum(len(line) + 1 for line in lines) for name, lines in LINES.items()}
"""Bytes, and the end of each line."""


def records(folder: Path, *names: str, every: int = 1, steps: int = 1, **more: Any) -> list[dict[str, float]]:
    """Return the losses of a run whose steps each have all rows of these sources."""
    sources = []
    for name in names:
        file = folder / f"{name}.txt"
        file.write_text("\n".join(LINES[name]), "utf-8")
        sources.append({"name": "text", "path": str(file), "split": "lines"})
    output = folder / "-".join([*names, str(every), *more.get("data", {}).values()])
    raw = {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "dataset": {"name": "concat", "sources": sources},
        "train": {"steps": steps, "micro_batch_size": 2, "global_batch_size": 8, "sequence_len": 32},
        "log": {"every_steps": every},
        **more,
        "data": {"cache": "none", "eval": "none", **more.get("data", {})},
    }
    train(raw, output=output)
    return [
        {name: value for name, value in record.items() if name.startswith("loss")}
        for record in MetricsFile(output / "metrics.jsonl").read()
    ]


@pytest.mark.parametrize("batching", ["padding", "packing"])
def test_each_source_has_the_loss_that_it_has_alone_and_the_whole_is_their_mean_over_tokens(
    batching: str, tmp_path: Path
) -> None:
    (mixed,) = records(tmp_path, *LINES, data={"batching": batching})
    assert list(mixed) == ["loss", "loss_words_txt", "loss_digits_txt"]
    for name in LINES:
        (alone,) = records(tmp_path, name, data={"batching": batching})
        assert list(alone) == ["loss"], "of one source there is nothing beside the whole"
        assert mixed[f"loss_{name}_txt"] == pytest.approx(alone["loss"], rel=1e-6)
    whole = sum(mixed[f"loss_{name}_txt"] * count for name, count in TOKENS.items()) / sum(TOKENS.values())
    assert mixed["loss"] == pytest.approx(whole, rel=1e-6)


def test_only_steps_that_are_logged_have_them_and_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    often, seldom = (records(tmp_path, *LINES, every=every, steps=4) for every in (2, 9))
    assert [len(record) for record in often] == [1, 3, 1, 3]
    assert [record["loss"] for record in often] == [record["loss"] for record in seldom]
    assert [len(record) for record in seldom] == [1, 1, 1, 1]


def test_a_loss_that_is_no_mean_over_tokens_is_told_for_all_together(tmp_path: Path) -> None:
    rows = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for file in rows:
        file.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 2)
    sources = [{"name": "jsonl", "path": str(file)} for file in rows]
    outcome = train(
        {
            "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
            "dataset": {"name": "concat", "sources": sources},
            "objective": "simpo",
            "train": {"steps": 1, "micro_batch_size": 2, "sequence_len": 128},
            "log": {"every_steps": 1},
            "data": {"cache": "none", "eval": "none"},
        },
        output=tmp_path / "run",
    )
    assert not outcome.stopped
    (record,) = MetricsFile(tmp_path / "run" / "metrics.jsonl").read()
    assert [name for name in record if name.startswith("loss")] == ["loss"]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["zero_stage: 3", "pipeline: 2", "sequence: 2"])
def test_two_ranks_have_those_of_one(layout: str, tmp_path: Path) -> None:
    (expected,) = records(tmp_path, *LINES)
    config = tmp_path / "again.yaml"
    ran = (tmp_path / "words-digits-1" / "run.yaml").read_text()
    key, _, value = layout.partition(": ")
    config.write_text(yaml.safe_dump(merge_sections(yaml.safe_load(ran), {"parallel": {key: int(value)}})))
    line = [sys.executable, "-m", "mt_train.cli.train", "--config", str(config), "--nproc-per-node", "2"]
    done = subprocess.run(
        [*line, "--output", str(tmp_path / "two")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    (record,) = MetricsFile(tmp_path / "two" / "metrics.jsonl").read()
    assert {name: record[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def merge_sections(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return config | {section: config[section] | values for section, values in changes.items()}
