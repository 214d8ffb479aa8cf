"""Places in time, rows and columns: by hand, and as transformers counts them.

Shapes: N tokens of all documents, T tokens of a row.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mt_core.nn.collation import collate, flatten
from mt_core.nn.positions import grid_positions, shift_behind
from mt_core.rows import Grid, MediaItem, MediaSpan, Sample


def span(start: int, grid: Grid | None, *, factor: int = 2, tokens: int = 0) -> MediaSpan:
    features = int(np.prod(grid)) if grid else tokens
    return MediaSpan(start, tokens or features // factor**2, MediaItem("see"), features, grid)


def test_text_goes_on_behind_the_longer_side_and_each_document_begins_anew() -> None:
    """Two tokens, an image of 2 x 3 tokens, one token; then a document of two tokens."""
    found = grid_positions([span(2, (1, 4, 6))], [9, 2])
    assert found is not None
    assert found.tolist() == [
        *([0, 0, 0], [1, 1, 1]),
        *([2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]),
        [5, 5, 5],
        *([0, 0, 0], [1, 1, 1]),
    ]
    assert shift_behind([span(2, (1, 4, 6))]) == 3 - 6


def test_items_that_have_no_rows_and_columns_of_tokens_stand_as_text() -> None:
    """An item without a grid, and one of whose features a projector makes another number."""
    flat = [span(1, None, tokens=3), span(5, (1, 4, 4), tokens=5)]
    assert [each.cells for each in flat] == [None, None]
    assert grid_positions(flat, [12]) is None
    assert shift_behind(flat) == 0
    mixed = grid_positions([*flat, span(10, (1, 2, 2))], [12])
    assert mixed is not None
    assert mixed.tolist() == [[place] * 3 for place in range(12)]


def test_squares_that_a_projector_joins_are_found_by_the_counts() -> None:
    assert span(0, (1, 4, 6), factor=1).cells == (1, 4, 6)
    assert span(0, (1, 6, 9), factor=3).cells == (1, 2, 3)
    assert span(0, (2, 4, 4)).cells == (2, 2, 2)


def sample(length: int, *spans: MediaSpan) -> Sample:
    return Sample(list(range(length)), [True] * length, "a:1", media=spans)


def test_packed_rows_have_the_places_of_each_document_by_itself_and_parts_those_of_the_whole() -> None:
    samples = [sample(9, span(2, (1, 4, 6))), sample(5), sample(8, span(0, (1, 2, 2)), span(3, (1, 6, 2)))]
    packed = collate(flatten([samples[:2], samples[2:]]), length=16, pad_id=0)
    assert packed.grid_positions is not None
    alone = [collate(flatten([[each]]), length=len(each.ids), pad_id=0) for each in samples]
    first, second, third = (
        each.positions[..., None].expand(-1, -1, 3) if each.grid_positions is None else each.grid_positions
        for each in alone
    )
    assert torch.equal(packed.grid_positions[0, :14], torch.cat([first[0], second[0]]))
    assert torch.equal(packed.grid_positions[1, :8], third[0])
    parts = [packed.cut(part, 2).grid_positions for part in range(2)]
    assert torch.equal(torch.cat(parts, 1), packed.grid_positions)


def test_a_batch_of_text_has_none() -> None:
    assert collate(flatten([[sample(4)], [sample(3)]]), length=4, pad_id=0).grid_positions is None


def test_places_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    text = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 30,
        "intermediate_size": 8,
    }
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 1, "intermediate_size": 8, "deepstack_visual_indexes": []}
    config = transformers.Qwen3VLConfig(
        text_config={**text, "head_dim": 16, "num_key_value_heads": 1}, vision_config=vision
    )
    with torch.device("meta"):
        model = transformers.Qwen3VLModel(config)
    generator = np.random.default_rng(0)
    for _ in range(20):
        spans, kinds = list[MediaSpan](), list[int]()
        for _ in range(int(generator.integers(1, 5))):
            kinds += [0] * int(generator.integers(1, 6))
            rows, columns = (2 * int(each) for each in generator.integers(1, 6, 2))
            spans.append(span(len(kinds), (1, rows, columns)))
            kinds += [1] * spans[-1].tokens
        kinds += [0] * int(generator.integers(1, 4))
        ids = torch.zeros(1, len(kinds), dtype=torch.long)
        grids = torch.tensor([each.grid for each in spans])
        expected, behind = model.get_rope_index(ids, torch.tensor([kinds]), image_grid_thw=grids)
        found = grid_positions(spans, [len(kinds)])
        assert found is not None
        assert np.array_equal(found.T, expected[:, 0].numpy())
        assert shift_behind(spans) == int(behind)
