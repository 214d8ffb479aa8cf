"""Media in batches and models: projected features stand in their places, and nowhere else.

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mt_core.nn import Encoder, Projector
from mt_core.nn.collation import collate, flatten
from mt_core.nn.media import add_levels
from mt_core.rows import MediaItem, MediaSpan, Sample
from mt_train.engine.media_inputs import MediaInputs, ProjectedEncoder


class Letters(Encoder):
    """Each letter is a feature."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(5, 3)

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        assert len(inputs["letters"]) == sum(features)
        return self.letters(inputs["letters"])


class Wider(Projector):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Any) -> Tensor:
        return self.linear(features_NW)


def sample(length: int, *spans: tuple[int, int], name: str = "dna") -> Sample:
    media = tuple(MediaSpan(start, tokens, MediaItem(name), tokens) for start, tokens in spans)
    return Sample(np.arange(1, length + 1).tolist(), [True] * length, "a:1", media=media)


ROWS = [[sample(4, (1, 2)), sample(3)], [sample(6, (0, 1), (3, 3))], []]


@pytest.fixture
def media() -> MediaInputs:
    torch.manual_seed(0)
    return MediaInputs({"dna": ProjectedEncoder(Letters(), Wider())})


def read(batch: Any, letters: list[int]) -> dict[str, Any]:
    from dataclasses import replace

    return {"dna": replace(batch.media["dna"], inputs={"letters": torch.tensor(letters)})}


def test_places_are_those_of_the_spans_whatever_rows_are_packed_or_padded() -> None:
    batch = collate(flatten(ROWS), length=8, pad_id=0)
    assert batch.media["dna"].places_M.tolist() == [1, 2, 8, 11, 12, 13]
    assert batch.media["dna"].rows_M.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.media["dna"].tokens == (2, 1, 3)
    assert collate(flatten([[sample(4)]]), length=8, pad_id=0).media == {}


def test_features_stand_in_their_places_and_nowhere_else(media: MediaInputs) -> None:
    batch = collate(flatten(ROWS), length=8, pad_id=0)
    hidden_BTD = torch.randn(3, 8, 4)
    given = read(batch, [0, 1, 2, 3, 4, 0])
    out = media(hidden_BTD, given)[0].flatten(0, 1)
    projected = media["dna"](given["dna"])
    places = batch.media["dna"].places_M
    assert torch.equal(out[places], projected)
    rest = torch.ones(24, dtype=torch.bool)
    rest[places] = False
    assert torch.equal(out[rest], hidden_BTD.flatten(0, 1)[rest])


def test_parts_of_rows_put_together_are_the_whole_rows_and_their_gradients_add_up(media: MediaInputs) -> None:
    whole = collate(flatten(ROWS), length=8, pad_id=0)
    hidden_BTD, weight_BTD = torch.randn(3, 8, 4), torch.randn(3, 8, 4)
    letters = [0, 1, 2, 3, 4, 0]
    out_BTD, _ = media(hidden_BTD, read(whole, letters))
    (out_BTD * weight_BTD).sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in media.named_parameters()}
    media.zero_grad()
    pieces = []
    for part in range(2):
        cut = slice(4 * part, 4 * part + 4)
        pieces.append(media(hidden_BTD[:, cut], read(whole.cut(part, 2), letters))[0])
        (pieces[-1] * weight_BTD[:, cut]).sum().backward()
    assert torch.equal(torch.cat(pieces, 1), out_BTD)
    for name, parameter in media.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-6, atol=1e-6)


def test_a_batch_without_items_reaches_every_parameter_with_a_gradient_of_zero(media: MediaInputs) -> None:
    """Or a rank without images would reduce fewer gradients than the others, and all would wait for ever."""
    batch = collate(flatten([[sample(5, (1, 2))]]), length=8, pad_id=0)
    dummy = read(batch.cut(1, 2), [0, 1])
    hidden_BTD = torch.randn(1, 4, 4)
    out, _ = media(hidden_BTD, dummy)
    assert torch.equal(out, hidden_BTD)
    out.sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in media.parameters())


def test_a_frozen_encoder_keeps_nothing_for_the_backward(media: MediaInputs) -> None:
    media["dna"].encoder.requires_grad_(False)
    batch = collate(flatten(ROWS), length=8, pad_id=0)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        media["dna"].encoder.train()
        features = media["dna"](read(batch, [0, 1, 2, 3, 4, 0])["dna"])
    assert features.requires_grad
    assert not media["dna"].encoder.training
    assert len(kept) <= 2, "the input and the weight of the projector alone"


def test_parameters_are_drawn_by_the_encoder_and_the_projector_themselves(media: MediaInputs) -> None:
    names = dict(media.named_parameters())
    media.init_tensor("dna.projector.linear.bias", names["dna.projector.linear.bias"].data, torch.Generator())
    assert not names["dna.projector.linear.bias"].any()


class Levelled(Wider):
    """Three vectors of each token: one for its place, two for behind the first two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.levels = nn.Linear(3, 12), 2


def test_levels_are_added_behind_their_blocks_in_the_places_of_the_items_and_nowhere_else() -> None:
    torch.manual_seed(0)
    media = MediaInputs({"dna": ProjectedEncoder(Letters(), Levelled())})
    batch = collate(flatten(ROWS), length=8, pad_id=0)
    given, hidden_BTD = read(batch, [0, 1, 2, 3, 4, 0]), torch.randn(3, 8, 4)
    out_BTD, levels = media(hidden_BTD, given)
    assert media.levels == 2
    projected = media["dna"](given["dna"])
    places = batch.media["dna"].places_M
    assert torch.equal(out_BTD.flatten(0, 1)[places], projected[:, :4])
    for index in range(3):
        added = (add_levels(hidden_BTD, index, levels) - hidden_BTD).flatten(0, 1)
        expected = torch.zeros(24, 4)
        if index < 2:
            expected[places] = projected[:, 4 * (index + 1) : 4 * (index + 2)]
        torch.testing.assert_close(added, expected)


def test_levels_of_a_dummy_reach_every_parameter_with_a_gradient_of_zero() -> None:
    media = MediaInputs({"dna": ProjectedEncoder(Letters(), Levelled())})
    batch = collate(flatten([[sample(5, (1, 2))]]), length=8, pad_id=0)
    out_BTD, levels = media(torch.randn(1, 4, 4), read(batch.cut(1, 2), [0, 1]))
    for index in range(2):
        out_BTD = add_levels(out_BTD, index, levels)
    out_BTD.sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in media.parameters())
