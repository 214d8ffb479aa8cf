"""Tests of the log-probabilities of tokens: values and gradients of the plain form, and no logits of all tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mt_core.nn import token_logprobs

TOKENS, WIDTH, VOCABULARY = 23, 8, 50


class CappedHead(nn.Linear):
    """A head with a soft-cap, as Gemma 2's."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(super().forward(x) / 3) * 3


def plain_logprobs(head: nn.Module, hidden: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The formula over all logits at once."""
    logps = (head(hidden) / temperature).log_softmax(-1)
    return logps[torch.arange(len(labels)), labels], -(logps.exp() * logps).sum(-1)


def make(kind: type[nn.Linear], bias: bool = False, tokens: int = TOKENS) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    head = kind(WIDTH, VOCABULARY, bias=bias)
    return head, torch.randn(tokens, WIDTH, requires_grad=True), torch.randint(VOCABULARY, (tokens,))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize(("kind", "bias"), [(nn.Linear, False), (nn.Linear, True), (CappedHead, False)])
@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_values_and_gradients_are_those_of_the_plain_form(
    kind: type[nn.Linear], bias: bool, entropy: bool, temperature: float, chunk: int
) -> None:
    """Each token has a gradient of its own, and the entropy another."""
    head, hidden, labels = make(kind, bias)
    of_logps, of_entropy = torch.randn(TOKENS), torch.randn(TOKENS)
    found: list[list[Tensor]] = []
    for ours in (True, False):
        if ours:
            logps, spread = token_logprobs(head, hidden, labels, temperature=temperature, entropy=entropy, chunk=chunk)
        else:
            logps, spread = plain_logprobs(head, hidden, labels, temperature)
        total = (logps * of_logps).sum()
        if entropy:
            assert spread is not None
            total = total + (spread * of_entropy).sum()
        else:
            assert spread is None or not ours
        gradients = torch.autograd.grad(total, [hidden, *head.parameters()])
        found.append([logps, *([spread] if entropy and spread is not None else []), *gradients])
    for ours_, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours_, theirs, rtol=1e-5, atol=1e-6)


def test_a_sum_squared_reaches_each_token_as_much_as_it_should() -> None:
    """The gradient of a token depends on those of all others, as in a loss of pairs."""
    head, hidden, labels = make(nn.Linear)
    sides = torch.arange(TOKENS) % 2

    def loss(logps: Tensor) -> Tensor:
        sums = torch.zeros(2).index_add(0, sides, logps)
        return torch.nn.functional.softplus(sums[1] - sums[0])

    ours = torch.autograd.grad(loss(token_logprobs(head, hidden, labels, chunk=5)[0]), [hidden, head.weight])
    theirs = torch.autograd.grad(loss(plain_logprobs(head, hidden, labels, 1.0)[0]), [hidden, head.weight])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [nn.Linear, CappedHead])
def test_no_tokens_give_nothing_and_a_gradient_of_zero(kind: type[nn.Linear]) -> None:
    head, hidden, labels = make(kind, tokens=0)
    logps, spread = token_logprobs(head, hidden, labels, entropy=True)
    assert logps.shape == (0,)
    assert spread is not None
    assert spread.shape == (0,)
    (gradient,) = torch.autograd.grad(logps.sum() + spread.sum(), [head.weight])
    assert gradient.shape == head.weight.shape
    assert not gradient.any()


def test_bfloat16_is_added_up_in_fp32() -> None:
    """As exact as the logits are: those of a head in bf16 have 8 bits, what is made of them has 24."""
    head, hidden, labels = make(nn.Linear)
    low = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.bfloat16)
    low.weight.data.copy_(head.weight)
    inputs = hidden.detach().bfloat16()
    logps, _ = token_logprobs(low, inputs, labels)
    assert logps.dtype == torch.float32
    wanted = low(inputs).float().log_softmax(-1)[torch.arange(TOKENS), labels]
    torch.testing.assert_close(logps, wanted, rtol=1e-6, atol=1e-6)


class Largest(TorchDispatchMode):
    """The most numbers that a tensor had."""

    numbers = 0

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:  # type: ignore[type-arg]
        out = func(*args, **(kwargs or {}))  # type: ignore[operator]
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.numel())
        return out


@pytest.mark.parametrize("kind", [nn.Linear, CappedHead])
def test_logits_exist_for_one_chunk_at_a_time(kind: type[nn.Linear]) -> None:
    head, hidden, labels = make(kind, tokens=640)
    with Largest() as seen:
        logps, spread = token_logprobs(head, hidden, labels, entropy=True, chunk=16)
        assert spread is not None
        (logps.square().sum() + spread.sum()).backward()
    assert seen.numbers <= max(640 * WIDTH, 16 * VOCABULARY)


class Logits(TorchDispatchMode):
    """The memory of every tensor of a chunk's logits, none of which is freed in here."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:  # type: ignore[type-arg]
        out = func(*args, **(kwargs or {}))  # type: ignore[operator]
        if isinstance(out, Tensor) and out.shape == (16, VOCABULARY):
            self.storages[out.untyped_storage().data_ptr()] = out.untyped_storage()
        return out


def test_logits_of_all_chunks_are_made_in_one_memory() -> None:
    """As those of ``chunked_loss``: otherwise a loss of pairs holds twice as many as fine-tuning on the same tokens."""
    head, hidden, labels = make(nn.Linear, tokens=64)
    with Logits() as forward:
        logps, _ = token_logprobs(head, hidden, labels, chunk=16)
    with Logits() as backward:
        logps.square().sum().backward()
    assert (len(forward.storages), len(backward.storages)) == (1, 1)
