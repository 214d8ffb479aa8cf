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


SECTIONS = {
    "runs": RopeScaling(sections=(2, 3, 3)),
    "in turns": RopeScaling(sections=(4, 2, 2), sections_interleaved=True),
}


def turned(scaling: RopeScaling, positions_BT: torch.Tensor, grid_BT3: torch.Tensor | None) -> torch.Tensor:
    """Cosines and sines of a row, (T, 2 F)."""
    context = BlockContext(positions_BT, torch.zeros_like(positions_BT), SdpaAttention(), grid_positions_BT3=grid_BT3)
    return torch.cat(Rotary(16, theta=1e4, scaling=scaling).tables(context), -1)[0, :, 0]


@pytest.mark.parametrize("name", SECTIONS)
def test_channels_turn_by_time_row_and_column_as_in_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    grid_BT3 = torch.randint(0, 50, (1, 7, 3))
    found = turned(SECTIONS[name], torch.arange(7)[None], grid_BT3)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(SECTIONS[name].sections)}
    shape = {"hidden_size": 32, "num_attention_heads": 2, "rope_parameters": rope}
    if name == "runs":
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding as Theirs

        config = transformers.Qwen2_5_VLConfig(text_config=shape).text_config
    else:
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding as Theirs

        config = transformers.Qwen3VLConfig(text_config={**shape, "head_dim": 16}).text_config
    cos, sin = Theirs(config)(torch.zeros(1), grid_BT3.permute(2, 0, 1))
    assert torch.equal(found, torch.cat([cos[0, :, :8], sin[0, :, :8]], -1))


@pytest.mark.parametrize("name", SECTIONS)
def test_text_turns_to_the_bit_as_without_sections(name: str) -> None:
    positions_BT = torch.arange(9)[None]
    plain = turned(RopeScaling(), positions_BT, None)
    assert torch.equal(turned(SECTIONS[name], positions_BT, None), plain)
    assert torch.equal(turned(SECTIONS[name], positions_BT, positions_BT[..., None].expand(-1, -1, 3)), plain)
    assert torch.equal(turned(RopeScaling(), positions_BT, torch.zeros(1, 9, 3, dtype=torch.long)), plain)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sections": (4, 4)}, "are not three counts"),
        ({"sections": (1, 4, 3), "sections_interleaved": True}, "every third pair"),
        ({"sections_interleaved": True}, "every third pair"),
        (
            {"type": "dynamic", "factor": 2.0, "original_max_seq_len": 8, "sections": (4, 2, 2)},
            "does not read sections",
        ),
    ],
)
def test_sections_that_do_not_fit_are_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RopeScaling(**options)
