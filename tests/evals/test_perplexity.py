"""Windows score each token once, and figures follow from their sums."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from llama_subject import FILES, LlamaSubject, open_evaluation, write_llama
from scripted_subject import ScriptedSubject

from mt_core import DataError, UsageError
from mt_plugin_evals.perplexity import windows

ROWS = {"name": "jsonl", "path": str(FILES / "documents.jsonl")}


@given(length=st.integers(1, 200), start=st.integers(1, 3), window=st.integers(4, 40), stride=st.integers(1, 40))
def test_each_token_is_scored_once_after_those_before_it(length: int, start: int, window: int, stride: int) -> None:
    stride = min(stride, window)
    ids, begin = list(range(100, 100 + length)), list(range(start))
    found = list(windows(ids, begin, window=window, stride=stride))
    assert [token for each in found for token in each.target] == ids
    for each in found:
        assert len(each.context) + len(each.target) - 1 <= window
        whole = [*begin, *ids]
        place = whole.index(each.target[0])
        assert list(each.context) == whole[place - len(each.context) : place], "what stands directly before it"
    if length > window:
        assert all(len(each.target) <= stride for each in found[1:])
        assert len(found[1].context) + len(found[1].target) == window + 1, "as much context as fits"


def test_windows_are_those_of_the_harness() -> None:
    utils = pytest.importorskip("lm_eval.utils")
    for length in (1, 7, 8, 9, 16, 17, 50):
        for stride in (8, 3, 1):
            ids = list(range(1, length + 1))
            rolling = utils.get_rolling_token_windows(ids, 0, 8, 8 - stride + 1)
            wanted = [utils.make_disjoint_window(each) for each in rolling]
            found = [(list(each.context), list(each.target)) for each in windows(ids, [0], window=8, stride=stride)]
            assert found == wanted


def test_a_stride_is_the_sliding_window_of_transformers(tmp_path: Path) -> None:
    """Each window's loss over its new tokens alone, the others masked, weighted by their number."""
    subject = LlamaSubject(write_llama(tmp_path, begins=True))
    (document,) = [json.loads(line)["text"] for line in (FILES / "documents.jsonl").read_text("utf-8").splitlines()][:1]
    ids = torch.tensor([[0, *subject.tokenizer.encode(document)]])
    nats, count, before = 0.0, 0, 0
    for begin in range(0, ids.shape[1], 16):
        end = min(begin + 33, ids.shape[1])  # 33 ids: 32 that the model reads, and one more that it predicts
        if end == before:
            break
        labels = ids[:, begin:end].clone()
        labels[:, : labels.shape[1] - (end - before)] = -100
        with torch.inference_mode():
            loss = subject.model(ids[:, begin:end], labels=labels).loss
        new = int((labels[:, 1:] != -100).sum())
        nats, count, before = nats + float(loss) * new, count + new, end
        if end == ids.shape[1]:
            break
    ours = open_evaluation("perplexity", rows=ROWS, window=32, stride=16, limit=1).run(subject)
    assert sum(row["tokens"] for row in ours.rows) == count == ids.shape[1] - 1
    assert math.log(ours.figures["perplexity"]) == pytest.approx(nats / count, rel=1e-5)
    disjoint = open_evaluation("perplexity", rows=ROWS, window=32, limit=1).run(subject)
    assert disjoint.figures["perplexity"] != ours.figures["perplexity"]
    assert ours.signatures["perplexity"] == "windows of 32 tokens, moved by 16"


def test_figures_are_by_token_word_and_byte() -> None:
    subject = ScriptedSubject(lambda context, target: -2.0 * len(target))
    found = open_evaluation("perplexity", rows=ROWS).run(subject)
    texts = [json.loads(line)["text"] for line in (FILES / "documents.jsonl").read_text("utf-8").splitlines()]
    characters, size = sum(map(len, texts)), sum(len(text.encode()) for text in texts)
    words = sum(len(text.split()) for text in texts)
    assert found.figures["perplexity"] == pytest.approx(math.exp(2))
    assert found.figures["byte_perplexity"] == pytest.approx(math.exp(2 * characters / size))
    assert found.figures["word_perplexity"] == pytest.approx(math.exp(2 * characters / words))
    assert found.figures["bits_per_byte"] == pytest.approx(2 * characters / size / math.log(2))
    assert list(found.notes) == [f"3 documents: {characters} tokens, {words} words, {size} bytes"]
    assert [row["tokens"] for row in found.rows] == [len(text) for text in texts]


def test_a_perplexity_beyond_floats_is_left_out() -> None:
    found = open_evaluation("perplexity", rows=ROWS).run(ScriptedSubject(lambda context, target: -500.0 * len(target)))
    assert "word_perplexity" not in found.figures
    assert math.isfinite(found.figures["perplexity"])


FAULTS: dict[str, tuple[list[Any], dict[str, Any], type[Exception], str]] = {
    "no such field": (
        [{"body": "x"}],
        {},
        DataError,
        r"a\.jsonl:1: text is None, not a text; texts of this row are body",
    ),
    "no text": ([{"text": 3}], {}, DataError, r"text is 3, not a text; texts of this row are none"),
    "nothing": ([{"text": ""}], {}, DataError, r"there is nothing to ask: all of 1 documents are empty"),
    "a window beyond the model": (
        [{"text": "x"}],
        {"window": 99},
        UsageError,
        r"window is 99 tokens, and the context .* 50",
    ),
    "a stride beyond the window": (
        [{"text": "x"}],
        {"window": 8, "stride": 9},
        UsageError,
        r"stride is 9 tokens, and a window",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_asked_is_an_error(fault: str, tmp_path: Path) -> None:
    rows, options, kind, message = FAULTS[fault]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    subject = ScriptedSubject(max_seq_len=50)
    with pytest.raises(kind, match=message):
        open_evaluation("perplexity", rows={"name": "jsonl", "path": str(tmp_path / "a.jsonl")}, **options).run(subject)
    with pytest.raises(kind, match=message):
        open_evaluation("perplexity", rows={"name": "jsonl", "path": str(tmp_path / "a.jsonl")}, **options).check(  # type: ignore[attr-defined]
            subject
        )
    assert subject.asked == []
    with pytest.raises(ValueError, match="rows has no name of a dataset"):
        open_evaluation("perplexity", rows={})


def test_empty_documents_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "ab"}\n{"body": ""}\n')
    rows = {"name": "jsonl", "path": str(tmp_path / "a.jsonl")}
    found = open_evaluation("perplexity", rows=rows, column="body").run(ScriptedSubject())
    assert list(found.notes) == ["1 documents: 2 tokens, 1 words, 2 bytes", "1 documents are empty and were left out"]
