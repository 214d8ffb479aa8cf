"""Forwards, losses and distances: how the checks of a model look at it.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from mt_conformance import trainer
from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.nn import Batch, BlockContext, KVCache, TokenObjective, TrainModel
from mt_core.protocols import Tokenizer

EXACT = 1e-5
"""How far two ways of computing the same may be apart, as a share of the outputs: another order of summation."""


def rows_of(ids_BT: Tensor, *lengths: int) -> Batch:
    """These ids as documents of these lengths, with the labels that a text would have."""
    positions_T = torch.cat([torch.arange(length) for length in lengths])
    documents_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    labels_BT = torch.roll(ids_BT, -1, 1)
    shape = ids_BT.shape
    return Batch(ids_BT, labels_BT, positions_T.expand(shape), documents_T.expand(shape).contiguous()).with_index()


def change_tokens(batch: Batch, model: TrainModel, start: int, end: int) -> Batch:
    """Other tokens in these places."""
    ids_BT = batch.input_ids.clone()
    ids_BT[:, start:end] = (ids_BT[:, start:end] + 1) % model.config.vocab_size
    return Batch(ids_BT, batch.labels, batch.positions, batch.document_ids).with_index()


def piece(batch: Batch, start: int, end: int) -> Batch:
    """A stretch of every row, as generation gives it."""
    ids, labels, positions, documents = (
        each[:, start:end] for each in (batch.input_ids, batch.labels, batch.positions, batch.document_ids)
    )
    return Batch(ids, labels, positions, documents)


def outputs(model: TrainModel, batch: Batch, cache: KVCache | None = None) -> Tensor:
    """Logits (B, T, V)."""
    with torch.no_grad():
        logits_BTV: Tensor = model.head(model(batch, cache))
    return logits_BTV


def chain_layers(modules: Sequence[nn.Module], model: TrainModel, batch: Batch) -> Tensor:
    """Logits (B, T, V) of layers called one after the other."""
    embed, *blocks, norm, head = modules
    context = BlockContext(
        positions_BT=batch.positions,
        document_ids_BT=batch.document_ids,
        attention=model.attention,
        document_lengths=batch.document_lengths,
    )
    with torch.no_grad():
        hidden_BTD = embed(batch.input_ids)
        for block in blocks:
            hidden_BTD = block(hidden_BTD, context)
        logits_BTV: Tensor = head(norm(hidden_BTD))
    return logits_BTV


def mean_loss(model: TrainModel, batch: Batch) -> Tensor:
    """Nats per token."""
    sums = TokenObjective().loss(model(batch), model.head, batch)
    return sums.loss_sum / sums.token_count


class Numbers:
    """Stands for the tokenizer of a model that is continued without one: a token is written as its number."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def generate_greedily(
    model: TrainModel, prompts: Sequence[Sequence[int]], most: int = 8, end_ids: Sequence[int] = ()
) -> list[list[int]]:
    """``most`` greedy tokens after each prompt, or up to where one of ``end_ids`` comes."""
    longest = max(map(len, prompts)) + most
    loaded = trainer.LoadedModel(model, cast(Tokenizer, Numbers()), longest, tuple(end_ids))
    config = GenerationConfig(rules=SamplingRules(greedy=True), max_new_tokens=most)
    return [list(found.ids) for found in trainer.continue_prompts(loaded, prompts, config, batch_size=len(prompts))]


def difference(one: Tensor, other: Tensor) -> float:
    """Return the distance as a share of the second's length."""
    return float(((one - other).norm() / other.norm().clamp(min=1e-9)).detach())


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of each, by name."""
    return {name: each.grad.clone() for name, each in module.named_parameters() if each.grad is not None}
