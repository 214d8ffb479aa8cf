"""Sequences that a pattern finds in texts train and generate as those of a field do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import UsageError
from mt_tools.cli.generate import main as generate
from mt_train import train

pytestmark = pytest.mark.needs("mt-plugin-llama")
MODEL = {"name": "llama", "vocab_size": 300, "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 48}
SEQUENCES = ("ACGTACGT", "GGGA", "TTACG", "CATTAG")
PATTERN = "<seq>([ACGT]+)</seq>"


def losses(folder: Path, rows: list[dict[str, Any]], patterns: dict[str, str]) -> list[float]:
    """Losses of two steps."""
    folder.mkdir()
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    raw = {
        "model": MODEL,
        "objective": "sft",
        "dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")},
        "encoders": {"hyenadna": {"dim": 16, "n_layers": 1, "l_max": 32, "projector": "linear"}},
        "data": {"eval": 1, "media_patterns": patterns},
        "train": {"steps": 2, "sequence_len": 64, "global_batch_size": 2, "micro_batch_size": 2},
    }
    train(raw, output=folder / "run")
    records = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in records]


def test_sequences_in_texts_train_and_generate_as_those_of_a_field_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = [{"prompt": "is <dna> one", "dna": each, "response": f"it is {each[:2]}"} for each in SEQUENCES]
    texts = [{"prompt": f"is <seq>{each}</seq> one", "response": f"it is {each[:2]}"} for each in SEQUENCES]
    expected = losses(tmp_path / "fields", fields, {})
    assert losses(tmp_path / "texts", texts, {"dna": PATTERN}) == expected
    assert losses(tmp_path / "plain", texts, {}) != expected, "no letter of a text is looked at without a pattern"
    capsys.readouterr()
    said = []
    for run, prompt in {
        "fields": ["is <dna> one", "--media", "dna=GGAT"],
        "texts": ["is <seq>GGAT</seq> one"],
        "plain": ["is <seq>GGAT</seq> one"],
    }.items():
        more = ["--greedy", "--max-new-tokens", "8", "--prompt", *prompt]
        assert generate(["--run", str(tmp_path / run / "run"), *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_a_pattern_for_what_no_encoder_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"media_patterns finds image, and the encoders of this run read dna"):
        losses(tmp_path / "run", [{"text": "a"}, {"text": "b"}], {"image": PATTERN})
