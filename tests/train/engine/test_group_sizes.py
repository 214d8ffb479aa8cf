"""Parameter groups are told with what is in them."""

from __future__ import annotations

import torch

from mt_core import GroupOptions, split_decay
from mt_train.engine.group_sizes import group_sizes

SHAPES = {
    "model.embed_tokens.weight": (9, 4),
    "model.layers.0.mlp.up.weight": (4, 4),
    "model.layers.0.mlp.lora_B.weight": (4, 2),
    "model.layers.0.norm.weight": (4,),
    "model.layers.1.mlp.up.weight": (4, 4),
    "model.layers.1.mlp.up.bias": (4,),
    "model.norm.weight": (4,),
    "lm_head.weight": (9, 4),
}


def test_groups_are_told_with_counts() -> None:
    named = [(name, torch.zeros(shape)) for name, shape in SHAPES.items()]
    sizes = group_sizes(split_decay(named, GroupOptions(weight_decay=0.1)), lr=3e-4)
    assert [str(each) for each in sizes] == [
        "decay: 5 tensors, 112 numbers, rate 0.0003, weight decay 0.1",
        "no_decay: 3 tensors, 12 numbers, rate 0.0003, weight decay 0",
    ]
