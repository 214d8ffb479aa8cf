"""The loss of each source of a mixed dataset, beside that of all held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt_train import train
from mt_train.assemble.held_out import MOST_SOURCES, figure_names, numbers_by_source
from mt_train.data.row_statistics import RowStatistics
from mt_train.data.samples import EncodedSamples
from mt_train.tracking.metrics import MetricsFile

LINES = {
    "words": ["one two three", "four five", "six seven eight nine", "ten"],
    "digits": ["1 2 3 4", "5 6 7 8 9 0", "2 2"],
}


def evaluate(folder: Path, *names: str, **data: Any) -> dict[str, float]:
    """Return the figures of the held-out rows of these sources, for the weights of step 0: the rate is too low to change any."""
    sources = []
    for name in names:
        file = folder / f"{name}.txt"
        file.write_text("\n".join(LINES[name]), "utf-8")
        sources.append({"name": "text", "path": str(file), "eval_path": str(file), "split": "lines"})
    output = folder / "-".join(names)
    raw = {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "dataset": {"name": "concat", "sources": sources},
        "data": {"cache": "none", **data},
        "optimizer": {"lr": 1e-30, "weight_decay": 0.0},
        "train": {"steps": 1, "micro_batch_size": 2, "sequence_len": 32},
        "eval": {"samples": 0},
    }
    train(raw, output=output)
    (record,) = MetricsFile(output / "metrics.jsonl").read()
    return {name: value for name, value in record.items() if name.startswith("eval_")}


@pytest.mark.parametrize("batching", ["padding", "packing"])
def test_each_source_has_the_loss_that_it_has_alone_and_the_whole_is_their_mean_over_tokens(
    batching: str, tmp_path: Path
) -> None:
    mixed = evaluate(tmp_path, "words", "digits", batching=batching)
    alone = {name: evaluate(tmp_path, name, batching=batching) for name in LINES}
    assert [name for name in mixed if name.startswith("eval_loss")] == [
        "eval_loss",
        "eval_loss_words_txt",
        "eval_loss_digits_txt",
    ]
    tokens = {name: sum(len(line) + 1 for line in lines) for name, lines in LINES.items()}  # bytes, and the end
    for name, figures in alone.items():
        assert set(figures) == {"eval_loss"}, "of one source there is nothing beside the whole"
        assert mixed[f"eval_loss_{name}_txt"] == pytest.approx(figures["eval_loss"], rel=1e-6)
    total = sum(alone[name]["eval_loss"] * count for name, count in tokens.items())
    assert mixed["eval_loss"] == pytest.approx(total / sum(tokens.values()), rel=1e-6)


def samples_of(runs: Sequence[tuple[str, int]], count: int) -> EncodedSamples:
    ends = np.arange(count + 1, dtype=np.int64)
    return EncodedSamples({"ends": ends}, RowStatistics(source_samples=list(runs)))


def test_samples_belong_to_the_source_of_their_rows_in_any_order() -> None:
    found = numbers_by_source(samples_of([("csv a", 2), ("csv b", 1), ("csv a", 3)], 6))
    assert {name: numbers.tolist() for name, numbers in found.items()} == {"a": [0, 1, 3, 4, 5], "b": [2]}


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([], id="no sources are known"),
        pytest.param([("csv a", 6)], id="one source"),
        pytest.param([("csv a", 2), ("csv b", 2)], id="samples of nobody"),
        pytest.param([(f"csv {number}", 1) for number in range(MOST_SOURCES + 1)], id="too many sources"),
    ],
)
def test_nothing_is_told_by_source_where_that_would_be_nothing_new_or_nothing_sure(
    runs: list[tuple[str, int]],
) -> None:
    count = MOST_SOURCES + 1 if len(runs) > 2 else 6
    assert numbers_by_source(samples_of(runs, count)) == {}


def test_names_of_figures_are_short_and_no_two_alike() -> None:
    sources = [
        "jsonl data/a.jsonl",
        "jsonl more/a.jsonl",
        "glue sst2",
        "alpaca",
        "hf 数据",
        "csv 数据",
        "jsonl data/A.jsonl",
    ]
    names = figure_names(sources)
    assert list(names.values()) == [
        "jsonl_data_a_jsonl",
        "jsonl_more_a_jsonl",
        "sst2",
        "alpaca",
        "hf",
        "csv",
        "jsonl_data_a_jsonl_6",
    ]
