"""Angles of rotary positions, where they depend on more than a token's place."""

from __future__ import annotations

import pytest
import torch

from mt_core import RopeScaling, Sample
from mt_core.nn import Batch, BlockContext, Rotary, SdpaAttention, TokenObjective

SCALINGS = {
    "dynamic": RopeScaling(type="dynamic", factor=4.0, original_max_seq_len=6),
    "longrope": RopeScaling(
        type="longrope", factor=4.0, original_max_seq_len=6, short_factor=(1, 1, 2, 3), long_factor=(2, 3, 5, 8)
    ),
}


def tables(batch: Batch, name: str = "dynamic") -> torch.Tensor:
    context = BlockContext(batch.positions, batch.document_ids, SdpaAttention(), lengths_BT=batch.lengths)
    return torch.cat(Rotary(8, scaling=SCALINGS[name]).tables(context), -1)


@pytest.mark.parametrize("name", SCALINGS)
def test_ranks_that_share_rows_have_the_angles_of_the_whole_documents(name: str) -> None:
    """Bit for bit, also where a document is cut between them."""
    documents = [[5, 12], [3]]
    samples = [[Sample([1] * n, [True] * n, "row") for n in row] for row in documents]
    whole = TokenObjective().collate(samples, length=20)
    parts = [tables(whole.cut(part, 2), name) for part in range(2)]
    assert torch.equal(torch.cat(parts, 1), tables(whole, name))
    assert not torch.equal(
        tables(whole, name)[0, 1], tables(whole, name)[0, 6]
    )  # one place in documents of 5 and of 12


def test_an_empty_row_and_padding_have_angles_too() -> None:
    batch = TokenObjective().collate([[], [Sample([1, 2], [True, True], "row")]], length=8)
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [[0] * 8, [2] * 8]
    assert tables(batch).isfinite().all()
