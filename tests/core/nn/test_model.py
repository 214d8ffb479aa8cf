"""A model as a list of layers."""

from __future__ import annotations

import pytest
from torch import nn

from mt_core.nn import TrainModel


class Named(TrainModel):
    """Modules that compute nothing, under the names of Hugging Face's decoders."""

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers, self.model.norm, self.model.embed_tokens = blocks, nn.LayerNorm(2), nn.Embedding(3, 2)
        self.lm_head = nn.Linear(2, 3)


def test_parts_with_the_names_of_hugging_faces_decoders_are_layers_in_the_order_in_which_they_run() -> None:
    block = nn.Linear(2, 2)
    model = Named(nn.ModuleList([block, nn.Linear(2, 2), block]))
    prefixes = ["model.embed_tokens", *(f"model.layers.{index}" for index in range(3)), "model.norm", "lm_head"]
    assert [layer.prefix for layer in model.layers()] == prefixes
    assert all(layer.module is model.get_submodule(layer.prefix) for layer in model.layers())
    assert model.head is model.lm_head


def test_a_model_with_other_names_is_told_to_list_its_layers() -> None:
    with pytest.raises(AssertionError, match=r"Named\.model\.layers is no ModuleList; write layers\(\)"):
        Named(nn.Sequential()).layers()
