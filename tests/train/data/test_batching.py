"""Packed rows keep documents apart, and train as padded ones do; rows of similar length come together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import Sample
from mt_core.nn import SdpaAttention, TokenObjective
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.data.epoch import EpochRows
from mt_train.data.loader import GROUPED_STEPS, Loader, Position, make_batch
from mt_train.data.order import permutation
from mt_train.data.packing import WINDOW, pack
from mt_train.data.samples import EncodedSamples

LENGTH = 48


@pytest.fixture(scope="module")
def model() -> Llama:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=48, max_seq_len=LENGTH)
    built = Llama(config)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.2)
    built.attention = SdpaAttention()
    return built


def samples_of(documents: list[list[int]]) -> EncodedSamples:
    samples = EncodedSamples()
    for number, ids in enumerate(documents):
        samples.add(Sample(ids, [True] * len(ids), str(number)))
    return samples


documents = st.lists(st.lists(st.integers(0, 63), min_size=2, max_size=12), min_size=2, max_size=4)


@given(documents, st.data())
@settings(max_examples=40, deadline=None)
def test_changing_one_document_leaves_the_others_logits_as_they_were(
    model: Llama, content: list[list[int]], data: Any
) -> None:
    which = data.draw(st.integers(0, len(content) - 1))
    changed = [[(token + 1) % 64 for token in ids] if number == which else ids for number, ids in enumerate(content)]
    rows = [tuple(range(len(content)))]
    batches = [make_batch(samples_of(each), TokenObjective(), rows, LENGTH) for each in (content, changed)]
    with torch.no_grad():
        before, after = (model.head(model(batch)) for batch in batches)
    others = batches[0].document_ids != which
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[~others], after[~others])


def gradients(model: Llama, samples: EncodedSamples, rows: list[tuple[int, ...]], length: int | None) -> list[Any]:
    objective = TokenObjective()
    model.zero_grad()
    batch = make_batch(samples, objective, rows, length)
    objective.loss(model(batch), model.head, batch).loss_sum.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_a_packed_batch_has_the_gradients_of_a_padded_one(model: Llama) -> None:
    random = np.random.default_rng(0)
    samples = samples_of([random.integers(0, 64, size).tolist() for size in (5, 12, 30, 9, 2, 17)])
    packed = gradients(model, samples, [(0, 1, 2), (3, 4, 5)], LENGTH)
    padded = gradients(model, samples, [(number,) for number in range(6)], None)
    largest = max(float(gradient.abs().max()) for gradient in padded)
    assert len(packed) > 10
    assert all(torch.allclose(a, b, rtol=0, atol=1e-5 * largest) for a, b in zip(packed, padded, strict=True))


def loader(lengths: list[int], **options: Any) -> Loader:
    samples = samples_of([[1] * length for length in lengths])
    given = {"sequence_len": 64, "packing": False, "micro_batch_size": 4, "global_batch_size": 8, "rank": 0, "world": 1}
    return Loader(samples, TokenObjective(), **{**given, "seed": 5, **options})


LENGTHS = np.random.default_rng(1).integers(2, 60, 1003).tolist()


def padded_share(source: Loader) -> float:
    places = tokens = 0
    for window, _ in zip(source.windows(Position()), range(source.steps_in(1)), strict=False):
        for batch in window.batches:
            places += batch.input_ids.numel()
            tokens += int((batch.labels != -100).sum())
    return 1 - tokens / places


def test_rows_of_similar_length_come_together_and_each_comes_once() -> None:
    plain, grouped = loader(LENGTHS), loader(LENGTHS, group_by_length=True)
    rows = grouped.rows(0).cut(0, 2000)
    assert sorted(number for row in rows for number in row) == list(range(len(LENGTHS)))
    assert padded_share(grouped) < 0.5 * padded_share(plain)
    firsts = [LENGTHS[rows[step * 8][0]] for step in range(GROUPED_STEPS)]
    assert firsts != sorted(firsts, reverse=True), "long rows are not all at the start"


def test_a_grouped_order_depends_on_seed_and_epoch_alone_and_resumes_anywhere() -> None:
    source = loader(LENGTHS, group_by_length=True)
    whole = source.rows(0).cut(0, 2000)
    assert loader(LENGTHS, group_by_length=True, rank=1, world=2).rows(0).cut(0, 2000) == whole
    assert loader(LENGTHS, group_by_length=True).rows(0).cut(777, 8) == whole[777:785]
    assert loader(LENGTHS, group_by_length=True, seed=6).rows(0).cut(0, 2000) != whole
    assert source.rows(1).cut(0, 2000) != whole


def test_rows_made_as_they_are_reached_are_those_of_packing_all_at_once() -> None:
    lengths = np.random.default_rng(2).integers(2, 64, 2 * WINDOW + 100).tolist()
    order = permutation(len(lengths), seed=5, epoch=1, shuffle=True).tolist()
    expected = pack(order, lengths, 64, seed=5, epoch=1)
    rows = loader(lengths, packing=True).rows(1)
    assert rows.cut(len(expected) - 3, 10) == expected[-3:], "the end first"
    assert rows.cut(0, len(expected)) == expected
    assert len(rows) == len(expected)


def test_windows_that_are_not_reached_are_not_grouped() -> None:
    asked: list[int] = []

    def grouping(numbers: Any, start: int) -> list[tuple[int, ...]]:
        asked.append(start)
        return [(number,) for number in numbers.tolist()]

    rows = EpochRows(np.arange(100), grouping, 10)
    assert rows.cut(18, 4) == [(18,), (19,), (20,), (21,)]
    assert asked == [0, 10, 20]
    assert not rows.has(100)
