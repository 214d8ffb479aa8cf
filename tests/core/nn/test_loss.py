"""The loss in chunks has the value and the gradient of the plain form, and nothing in a step grows faster than its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from mt_conformance.tiny_config import TinyConfig
from mt_conformance.tiny_model import TinyModel
from mt_core import Sample
from mt_core.nn import NOT_TRAINED, Batch, LossTerms, TokenObjective, chunked_loss, loss

PLAIN, BOTH = LossTerms(), LossTerms(smoothing=0.2, z=0.03)


class SoftCap(nn.Module):
    """A head that is not a plain linear layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, hidden: Tensor) -> Tensor:
        return 5.0 * torch.tanh(self.linear(hidden) / 5.0)


@pytest.mark.parametrize("wrap", [lambda head: head, SoftCap], ids=["linear", "soft-cap"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("chunk", "terms"), [(1, PLAIN), (4, PLAIN), (7, PLAIN), (100, PLAIN), (4, BOTH), (100, BOTH)])
def test_value_and_gradients_equal_the_plain_form(
    wrap: Callable[..., Any], weighted: bool, chunk: int, terms: LossTerms
) -> None:
    torch.manual_seed(0)
    head = wrap(nn.Linear(12, 31, bias=False)).double()
    hidden = torch.randn(13, 12, dtype=torch.float64, requires_grad=True)
    labels, weights = torch.randint(0, 31, (13,)), torch.rand(13) if weighted else None
    plain = F.cross_entropy(head(hidden), labels, reduction="none", label_smoothing=terms.smoothing)
    plain = plain + terms.z * torch.logsumexp(head(hidden), 1) ** 2
    plain = (plain if weights is None else plain * weights).sum() * 0.37
    expected = torch.autograd.grad(plain, [hidden, *head.parameters()])
    ours = chunked_loss(head, hidden, labels, weights, chunk=chunk, terms=terms) * 0.37
    gradients = torch.autograd.grad(ours, [hidden, *head.parameters()])
    assert ours.item() == pytest.approx(plain.item(), rel=2e-6), "logits are taken to fp32"
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-6, rtol=2e-6)


def test_a_frozen_head_gets_no_gradient_and_still_passes_one_on() -> None:
    head, hidden = nn.Linear(4, 9, bias=False).requires_grad_(False), torch.randn(5, 4, requires_grad=True)
    chunked_loss(head, hidden, torch.arange(5)).backward()
    assert head.weight.grad is None
    assert hidden.grad is not None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_makes_no_gradient_of_the_head(mode: Any) -> None:
    """A Function is told that an input needs a gradient also where none is recorded: that was two thirds of the products."""
    head, hidden, labels = nn.Linear(8, 40, bias=False), torch.randn(30, 8), torch.randint(40, (30,))
    expected = chunked_loss(head, hidden, labels, chunk=10).detach()
    with mode(), profile(activities=[ProfilerActivity.CPU]) as seen:
        found = chunked_loss(head, hidden, labels, chunk=10)
    assert torch.equal(found, expected)
    products = [each.count for each in seen.key_averages() if each.key in ("aten::mm", "aten::addmm_")]
    assert sum(products) == 3


def test_smoothing_and_z_loss_are_of_the_training_only() -> None:
    head, hidden = nn.Linear(12, 9, bias=False), torch.randn(1, 6, 12)
    batch = TokenObjective().collate([[Sample([1, 2, 3, 4, 5, 6], [True] * 6, "row")]], length=6)
    plain, both = (TokenObjective(terms=terms).loss(hidden, head, batch).loss_sum.item() for terms in (PLAIN, BOTH))
    assert both != plain
    assert TokenObjective(terms=BOTH).loss(hidden, head.eval(), batch).loss_sum.item() == plain


@pytest.mark.parametrize("wrap", [lambda head: head, SoftCap], ids=["linear", "soft-cap"])
def test_no_trained_token_still_runs_head_and_backward(wrap: Callable[..., Any]) -> None:
    head, hidden = wrap(nn.Linear(4, 9, bias=False)), torch.randn(0, 4, requires_grad=True)
    loss = chunked_loss(head, hidden, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0.0
    assert hidden.grad is not None


def test_the_loss_of_a_bf16_head_stays_near_fp32() -> None:
    torch.manual_seed(1)
    head, hidden, labels = nn.Linear(32, 50, bias=False), torch.randn(40, 32), torch.randint(0, 50, (40,))
    exact = chunked_loss(head, hidden, labels)
    assert chunked_loss(head.bfloat16(), hidden.bfloat16(), labels).item() == pytest.approx(exact.item(), rel=1e-2)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("terms", [PLAIN, BOTH])
def test_logits_that_a_kernel_widens_give_the_same_loss_and_gradients(
    weighted: bool, terms: LossTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, in bf16. Products differ by nothing, so the loss by fp32's rounding alone, and gradients in bf16's last of 8 bits."""
    torch.manual_seed(1)
    head = nn.Linear(32, 50, bias=False).bfloat16()
    hidden, labels = torch.randn(40, 32).bfloat16().requires_grad_(), torch.randint(0, 50, (40,))
    weights, found = torch.rand(40) if weighted else None, []
    for widens in (False, True):
        monkeypatch.setattr(loss, "_widens_by_kernel", lambda logits, widens=widens: widens)
        value = chunked_loss(head, hidden, labels, weights, chunk=16, terms=terms)
        found.append([value, *torch.autograd.grad(value, [hidden, head.weight])])
    assert found[1][0].item() == pytest.approx(found[0][0].item(), rel=1e-6)
    for plain, widened in zip(*(each[1:] for each in found), strict=True):
        assert float((widened - plain).norm() / plain.norm()) < 2e-3
    assert found[1][1].norm() > 1, "there is a gradient to compare"


class Sizes(TorchDispatchMode):
    """Notes the number of elements of every tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.largest_shape = 0, ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, tuple | list) else [out]:
            if isinstance(item, Tensor) and item.numel() > self.largest:
                self.largest, self.largest_shape = item.numel(), tuple(item.shape)
        return out


VOCABULARY, CHUNK = 997, 1024


def step_sizes(length: int, *, packed: bool, recompute: bool) -> Sizes:
    config = TinyConfig(vocab_size=VOCABULARY, max_seq_len=8192, dim=16, n_layers=2)
    torch.manual_seed(0)
    model, objective = TinyModel(config), TokenObjective(terms=BOTH if packed else PLAIN)
    model.checkpoint_blocks = recompute
    document = length // 4 if packed else length
    samples = [Sample(list(range(1, document + 1)), [True] * document, "row") for _ in range(length // document)]
    samples = [Sample([token % 900 for token in sample.ids], sample.trained, "row") for sample in samples]
    batch: Batch = objective.collate([samples], length=length).with_index()
    with Sizes() as sizes:
        objective.loss(model(batch), model.head, batch).loss_sum.backward()
    return sizes


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_no_tensor_of_a_step_grows_faster_than_the_row_and_none_has_all_logits(packed: bool, recompute: bool) -> None:
    base = 2048
    largest = {times: step_sizes(base * times, packed=packed, recompute=recompute) for times in (1, 2, 4)}
    for times, sizes in largest.items():
        assert sizes.largest <= largest[1].largest * times, sizes.largest_shape
        assert sizes.largest < base * times * VOCABULARY, sizes.largest_shape
        assert sizes.largest < (base * times) ** 2, sizes.largest_shape
        assert sizes.largest <= max(CHUNK * VOCABULARY, base * times * 64), sizes.largest_shape


def test_labels_are_shifted_once_and_never_across_documents() -> None:
    first, second = Sample([5, 6, 7], [True] * 3, "a"), Sample([8, 9], [False, True], "b")
    batch = TokenObjective(pad_id=1).collate([[first, second], [second]], length=6)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 1], [8, 9, 1, 1, 1, 1]]
    no = NOT_TRAINED
    assert batch.labels.tolist() == [[6, 7, no, 9, no, no], [9, no, no, no, no, no]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert batch.document_ids.tolist() == [[0, 0, 0, 1, 1, 1], [0] * 6]
    assert batch.with_index().document_lengths == ((3, 3), (6,))
    assert TokenObjective().count(batch) == 4
