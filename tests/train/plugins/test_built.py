"""Objects that lack a method of their protocol are named with it, before anybody calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from mt_core import ComponentError
from mt_core.nn import TrainModel
from mt_train.assemble.discovery import load_plugins
from mt_train.plugins.built import check_built

HOST = load_plugins()


class Rows:
    """A dataset whose method has another name."""

    def __len__(self) -> int:
        return 1

    def get(self, index: int) -> dict[str, Any]:
        return {"id": "rows:1"}


class Lines:
    def rows(self, epoch: int, seed: int) -> Iterator[dict[str, Any]]:
        yield {"id": "lines:1"}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None


@pytest.mark.parametrize(
    ("kind", "name", "built", "says"),
    [
        (
            "dataset",
            "jsonl",
            Rows(),
            r"dataset 'jsonl' of mt-plugin-standard \S+ builds a Rows without row; define it as",
        ),
        (
            "dataset",
            "jsonl",
            object(),
            r"builds a object without __len__, row; define them as mt_core.Dataset has them",
        ),
        ("objective", "sft", Rows(), r"objective 'sft' .* builds a Rows without .*\bencode\b.*\bloss\b"),
        ("tokenizer", "byte", Rows(), r"tokenizer 'byte' .* builds a Rows without .*\bdecode, encode\b"),
    ],
    ids=["a renamed method", "nothing", "objective", "tokenizer"],
)
def test_what_lacks_is_named(kind: str, name: str, built: object, says: str) -> None:
    with pytest.raises(ComponentError, match=says):
        check_built(built, HOST.get(kind, name))


def test_what_has_all_or_may_be_otherwise_is_left_alone() -> None:
    check_built(None, HOST.get("dataset", "jsonl"))
    check_built(Lines(), HOST.get("dataset", "jsonl"))
    check_built(object(), HOST.get("callback", "ema"))
    check_built(object(), HOST.get("schedule", "cosine"))


class Bare(TrainModel):
    """A model whose modules have names of its own."""

    def __init__(self, config: object = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        if config is not None:
            self.config = config  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("built", "says"),
    [
        (nn.Linear(2, 2), r"builds a Linear, which is no mt_core.nn.TrainModel; derive its class from that"),
        (Bare(), r"builds a Bare without config; set self.config = config"),
        (Bare(object()), r"builds a Bare whose layers\(\) ends in: .*model.*Define layers\(\), or name"),
    ],
    ids=["another module", "without config", "without layers"],
)
def test_a_model_that_cannot_be_trained_is_named_with_what_to_define(built: object, says: str) -> None:
    with pytest.raises(ComponentError, match=says):
        check_built(built, HOST.get("train_model", "llama"))
