"""Held-out sets by name, and metrics of their tokens."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from llama_subject import FILES, LlamaSubject, open_evaluation, write_llama

from mt_core import ComponentError, DataError, Sample, UsageError
from mt_core.evaluation import TokenValues
from mt_plugin_evals.held_out import HeldOut, HeldOutConfig, build_held_out
from mt_plugin_evals.metrics.base import TokenMetric
from mt_plugin_evals.metrics.tokens import TokenAccuracy, TokenAccuracyConfig, TokenLoss

DOCUMENTS = {"name": "jsonl", "path": str(FILES / "documents.jsonl")}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> LlamaSubject:
    return LlamaSubject(write_llama(tmp_path_factory.mktemp("llama"), begins=True))


def test_each_set_has_the_figures_that_logits_give(subject: LlamaSubject, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"text": "A list is ordered."}\n')
    sets = {"all": DOCUMENTS, "short": {"name": "jsonl", "path": str(tmp_path / "b.jsonl")}}
    found = open_evaluation(
        "rows", sets=sets, metrics=({"name": "token-loss"}, {"name": "token-accuracy", "k": 3})
    ).run(subject)
    texts = [json.loads(line)["text"] for line in (FILES / "documents.jsonl").read_text("utf-8").splitlines()]
    for name, own in {"all": texts, "short": ["A list is ordered."]}.items():
        losses, first, among = [], [], []
        for text in own:
            ids = torch.tensor(subject.tokenizer.encode(text))
            with torch.inference_mode():
                logits = subject.model(ids[None]).logits[0, :-1]
            losses += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none").tolist()
            first += (logits.argmax(-1) == ids[1:]).tolist()
            among += (logits.topk(3).indices == ids[1:, None]).any(-1).tolist()
        assert found.figures[f"{name}_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
        assert found.figures[f"{name}_perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
        assert found.figures[f"{name}_token_accuracy"] == sum(first) / len(first)
        assert found.figures[f"{name}_top3_accuracy"] == sum(among) / len(among)
        assert found.groups[f"set/{name}"]["tokens"] == len(losses)
    assert found.figures["all_top3_accuracy"] > 0
    assert found.signatures["top3_accuracy"] == "share of trained tokens; top 3"
    assert len(list(found.rows)) == 4


def sample(**more: Any) -> Sample:
    return replace(Sample([5, 6, 7, 8], [True, False, True, True], "x:1"), **more)


VALUES = TokenValues(np.array([-1.0, -3.0]), np.array([[7, 9], [1, 8]]), np.array([[-1.0, -2.0], [-0.5, -3.0]]))


def test_only_trained_tokens_count_and_the_first_has_no_value() -> None:
    accuracy = TokenAccuracy(TokenAccuracyConfig(k=2))
    assert accuracy.score_tokens(sample(), VALUES) == {"first": 1, "among": 2, "tokens": 2}
    assert accuracy.total_tokens([{"first": 1, "among": 2, "tokens": 2}] * 2) == {
        "token_accuracy": 0.5,
        "top2_accuracy": 1.0,
    }
    assert TokenLoss().total_tokens([TokenLoss().score_tokens(sample(), VALUES)])["loss"] == 2.0


def test_weights_count_as_in_training() -> None:
    scores = TokenLoss().score_tokens(sample(weights=[1.0, 1.0, 3.0, 1.0]), VALUES)
    assert TokenLoss().total_tokens([scores])["loss"] == (3 * 1.0 + 3.0) / 4


class Surprises:
    """A stranger's metric: how many tokens are beyond so many nats."""

    signature, top = "beyond 5 nats", 1

    def score_tokens(self, sample: Sample, values: TokenValues) -> Mapping[str, float]:
        return {"surprises": float((values.logprobs < -5).sum())}

    def total_tokens(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        return {"surprises": sum(each["surprises"] for each in scores)}


class Answers:
    """A metric of answers."""

    signature = "exact"


def test_a_metric_of_ones_own_sees_the_values_of_each_token(subject: LlamaSubject) -> None:
    assert isinstance(Surprises(), TokenMetric)
    rows = [{"id": "x:1", "text": "A list is ordered; a set is not."}]

    class Rows:
        def __len__(self) -> int:
            return 1

        def row(self, index: int) -> Any:
            return rows[index]

    config = HeldOutConfig(sets={"own": DOCUMENTS}, metrics=({"name": "surprises"},))
    found = build_held_out(config, split="train", parts=[Rows(), Surprises()]).run(subject)
    (values,) = subject.token_values(subject.encode(rows))
    assert found.figures["own_surprises"] == (values.logprobs < -5).sum() > 0
    with pytest.raises(ComponentError, match=r"metric surprises scores answers, and rows have tokens"):
        build_held_out(config, split="train", parts=[Rows(), Answers()])
    with pytest.raises(ComponentError, match=r"two metrics have a figure surprises"):
        HeldOut(config, {"own": Rows()}, [Surprises(), Surprises()]).run(subject)


def test_sets_that_cannot_be_asked_are_errors(
    subject: LlamaSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"'my-set' is part of the names of figures"):
        open_evaluation("rows", sets={"my-set": DOCUMENTS})
    with pytest.raises(ValueError, match=r"sets\.a has no name of a dataset"):
        open_evaluation("rows", sets={"a": {}})
    with pytest.raises(ValueError, match=r"metrics\.0 has no name; write \{name: token-loss\}"):
        open_evaluation("rows", sets={"a": DOCUMENTS}, metrics=({"k": 1},))
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    rows = {"name": "jsonl", "path": str(tmp_path / "a.jsonl")}
    with pytest.raises(DataError, match=r"set a has no token that is trained on"):
        open_evaluation("rows", sets={"a": rows}).run(subject)
    unread = open_evaluation("rows", sets={"first": DOCUMENTS, "a": rows})
    assert isinstance(unread, HeldOut)
    with pytest.raises(DataError, match=r"set a has no token that is trained on"):
        unread.check(subject)

    def refuse(rows: object) -> list[Sample]:
        raise DataError("a.jsonl:1: no text")

    monkeypatch.setattr(subject, "encode", refuse)
    for look in (unread.check, unread.run):
        with pytest.raises(DataError, match=r"set first: a\.jsonl:1: no text"):
            look(subject)


def test_more_likeliest_tokens_than_there_are_is_refused(
    subject: LlamaSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject.tokenizer, "size", 12)
    asked = open_evaluation("rows", sets={"a": DOCUMENTS}, metrics=({"name": "token-accuracy", "k": 20},))
    with pytest.raises(
        UsageError, match=r"the 20 likeliest tokens of a place, and the tokenizer has 12\. Lower it, .*k: 12"
    ):
        asked.run(subject)


def test_samples_of_arrays_give_figures_that_are_json(subject: LlamaSubject) -> None:
    class Arrays(LlamaSubject):
        def __init__(self) -> None:
            vars(self).update(vars(subject))

        def encode(self, rows: Any) -> list[Sample]:
            return [
                Sample(np.array(each.ids), np.array(each.trained), each.row_id, np.ones(len(each.ids), np.float32))  # type: ignore[arg-type]
                for each in super().encode(rows)
            ]

    evaluation = open_evaluation("rows", sets={"a": DOCUMENTS})
    found = evaluation.run(Arrays())
    json.dumps([dict(found.figures), {name: dict(each) for name, each in found.groups.items()}, list(found.rows)])
    assert found.figures == evaluation.run(subject).figures


def test_a_limit_takes_the_first_rows(subject: LlamaSubject) -> None:
    assert open_evaluation("rows", sets={"a": DOCUMENTS}, limit=2).run(subject).groups["set/a"]["samples"] == 2
