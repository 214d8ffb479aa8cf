"""What an adapter that looks at gradients is shown of a loss of several terms. Other figures: tests/adapters/test_lora_da.py."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from tests.alignment.two_terms import TwoTerms

from mt_conformance.tiny_config import TinyConfig
from mt_conformance.tiny_model import TinyModel
from mt_conformance.weights import fill_weights
from mt_core import Sample
from mt_core.nn import Batch
from mt_core.nn.collation import collate, flatten
from mt_train.assemble.probe import ModelProbe

PAIRS = [([3, 4, 5, 6, 7], [3, 4, 9]), ([8, 2, 1], [8, 30, 31, 32, 33, 34]), ([5, 6, 7], [5, 9, 9, 9])]


def batch(*numbers: int) -> Batch:
    """Some pairs, a row each; what follows the first token of a side is trained."""
    rows = []
    for chosen, rejected in (PAIRS[number] for number in numbers):
        trained = [place not in (0, len(chosen)) for place in range(len(chosen) + len(rejected))]
        rows.append([Sample([*chosen, *rejected], trained, "", None, [len(chosen), len(rejected)])])
    return collate(flatten(rows), length=12, pad_id=0).with_index()


def test_gradients_are_of_all_terms_each_over_its_own_count_however_rows_are_divided() -> None:
    """Against autograd on all rows at once."""
    model = fill_weights(TinyModel(TinyConfig(vocab_size=272, max_seq_len=256)), wide=True)
    objective = TwoTerms(tokenizer=SimpleNamespace(pad_id=0), template=None, counts="pairs")
    names = [name for name, _ in model.named_parameters()]
    whole = batch(0, 1, 2)
    sums = objective.loss(model(whole), model.head, whole)
    likelihood, tokens = sums.terms["likelihood"]
    expected = torch.autograd.grad(sums.loss_sum / sums.token_count + likelihood / tokens, list(model.parameters()))
    for batches in ([whole], [batch(0), batch(1, 2)]):
        loader = SimpleNamespace(windows=lambda position, found=batches: iter([SimpleNamespace(batches=found)]))
        process = SimpleNamespace(device=torch.device("cpu"), world=1)
        found = ModelProbe(model, objective, loader, process).gradients(names, steps=1)
        for name, each in zip(names, expected, strict=True):
            assert (found[name] - each).norm() <= 2e-6 * each.norm(), name
