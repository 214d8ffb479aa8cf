"""Batches travel one ahead of the batch that is computed; what a GPU would do is written down by a stand-in, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core.nn import TokenObjective
from mt_core.nn.batch import Batch
from mt_core.rows import Sample
from mt_train.engine.transfer import Transfer


def batch_of(number: int) -> Batch:
    return TokenObjective().collate([[Sample([number] * 8, [True] * 8, "row")]], length=8).with_index()


class Stream:
    def __init__(self, said: list[str], name: str) -> None:
        self.said, self.name = said, name

    def record_event(self) -> str:
        return f"event {sum(each.startswith('copy') for each in self.said)}"

    def wait_event(self, event: str) -> None:
        self.said.append(f"{self.name} waits for {event}")


class Cuda:
    """What ``Transfer`` calls of ``torch.cuda``."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.present = Stream(self.said, "compute")

    def Stream(self, device: torch.device) -> Stream:
        return Stream(self.said, "copies")

    def current_stream(self, device: torch.device) -> Stream:
        return self.present

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.present = self.present, stream
        yield
        self.present = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()

    def to(batch: Batch, device: Any) -> Batch:
        cuda.said.append(f"copy {int(batch.input_ids[0, 0])} on {cuda.present.name}")
        return batch

    def keep(tensor: Tensor, stream: Stream) -> None:
        assert stream.name == "compute"
        kept.append(tensor)

    kept: list[Tensor] = []
    monkeypatch.setattr(Batch, "to", to)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    monkeypatch.setattr(Tensor, "record_stream", keep)
    pinned: list[Tensor] = []
    cuda.kept, cuda.pinned = kept, pinned  # type: ignore[attr-defined]
    return cuda


def test_the_next_batch_travels_before_the_present_one_is_computed(cuda: Any) -> None:
    transfer = Transfer(torch.device("cuda"), cuda)
    for batch in transfer.copy_ahead([batch_of(1), batch_of(2), batch_of(3)]):
        cuda.said.append(f"compute {int(batch.input_ids[0, 0])}")
    assert cuda.said == [
        *("copy 1 on copies", "copy 2 on copies", "compute waits for event 1", "compute 1"),
        *("copy 3 on copies", "compute waits for event 2", "compute 2"),
        *("compute waits for event 3", "compute 3"),
    ]


def test_every_tensor_is_pinned_and_kept_until_it_is_computed(cuda: Any) -> None:
    (batch,) = Transfer(torch.device("cuda"), cuda).copy_ahead([batch_of(1)])
    tensors = sum(isinstance(each, Tensor) for each in vars(batch).values())
    assert len(cuda.pinned) == len(cuda.kept) == tensors > 4


def test_nothing_travels_for_no_batches(cuda: Any) -> None:
    assert list(Transfer(torch.device("cuda"), cuda).copy_ahead([])) == []
    assert cuda.said == []


def test_on_a_cpu_batches_come_as_they_are_one_by_one() -> None:
    taken: list[int] = []

    def batches() -> Iterator[Batch]:
        for number in (1, 2):
            taken.append(number)
            yield batch_of(number)

    for place, batch in enumerate(Transfer(torch.device("cpu")).copy_ahead(batches()), 1):
        assert int(batch.input_ids[0, 0]) == place
        assert taken[-1] == place  # none is taken ahead: what makes a batch may read the model
