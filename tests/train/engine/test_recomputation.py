"""Blocks that are recomputed give the same bits in every form, and keep what the form says."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mt_core.errors import ComponentError
from mt_core.nn import Batch, BlockContext, SdpaAttention, TrainModel
from mt_plugin_gemma.config import GemmaConfig
from mt_plugin_gemma.model import Gemma
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_plugin_qwen.config import QwenConfig
from mt_plugin_qwen.model import Qwen
from mt_train.engine import recomputation
from mt_train.engine.recomputation import IN_FLIGHT, HostInputs, block_runner, run_with_host_input

FORMS = ("full", "selective", "host")
ROWS, TOKENS = 2, 64
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "max_seq_len": 64,
    "dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 2,
    "ffn_dim": 64,
}
MODELS = {
    "llama": lambda: Llama(LlamaConfig(**SIZES, dropout=0.1)),
    "gemma": lambda: Gemma(GemmaConfig(**SIZES, head_dim=8, window=16, generation=2, global_every=2, query_scalar=8)),
    "qwen": lambda: Qwen(QwenConfig(**SIZES, head_dim=8, generation=3)),
}


def batch() -> Batch:
    """One row of two documents, one of a single document."""
    ids_BT = torch.arange(ROWS * TOKENS).view(ROWS, TOKENS) % 40
    lengths = ((40, 24), (64,))
    places = torch.stack([torch.cat([torch.arange(size) for size in row]) for row in lengths])
    documents = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])
    return Batch(ids_BT, ids_BT, places, documents).with_index()


def gradients(model: TrainModel, form: str | None) -> tuple[Tensor, dict[str, Tensor]]:
    model.checkpoint_blocks = form is not None
    model.recompute = block_runner(form or "full")
    model.zero_grad()
    torch.manual_seed(0)
    hidden_BTD = model(batch())
    hidden_BTD.square().sum().backward()
    return hidden_BTD.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_every_form_has_the_bits_of_a_run_without(name: str) -> None:
    """Packed rows, dropout, windows of Gemma: the random numbers of the repetition are those of the forward."""
    torch.manual_seed(0)
    model = MODELS[name]().train()
    plain, wanted = gradients(model, None)
    for form in FORMS:
        hidden, found = gradients(model, form)
        assert torch.equal(hidden, plain), form
        assert found.keys() == wanted.keys()
        assert not [each for each in found if not torch.equal(found[each], wanted[each])], form


def test_selective_runs_attention_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, attend = [], SdpaAttention.__call__
    monkeypatch.setattr(SdpaAttention, "__call__", lambda self, *a, **k: (calls.append(1), attend(self, *a, **k))[1])
    model = MODELS["qwen"]()
    counts = {}
    for form in (None, *FORMS):
        calls.clear()
        gradients(model, form)
        counts[form] = len(calls)
    assert counts == {None: 3, "full": 6, "selective": 3, "host": 6}


def test_selective_keeps_the_output_of_attention_and_neither_queries_nor_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of the storages that attention's kernel has beside what the repetition makes."""
    kept: dict[int, int] = {}
    pack = recomputation._Lent.pack

    def watch(self: Any, tensor: Tensor) -> Any:
        packed = pack(self, tensor)
        if isinstance(packed, Tensor):
            kept[packed.untyped_storage()._cdata] = packed.untyped_storage().nbytes() // 4
        return packed

    monkeypatch.setattr(recomputation._Lent, "pack", watch)
    block, places = MODELS["llama"]().model.layers[0], torch.arange(TOKENS)[None]
    context = BlockContext(places, places * 0, SdpaAttention(), document_lengths=((TOKENS,),))
    out = recomputation.run_with_kept_attention(block, torch.randn(1, TOKENS, 32, requires_grad=True), context)
    assert sum(kept.values()) == TOKENS * 4 * (8 + 1)  # the output, and a number a query
    out.sum().backward()


class ChangingStride(nn.Module):
    """Attention in one row, whose stride is another at each call, as torch's ``cat`` gives at times."""

    calls = 0

    def forward(self, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        self.calls += 1
        x_BTNH = hidden_BTD.view(1, TOKENS, 4, 8) * 1.0
        x_BTNH = x_BTNH.as_strided(x_BTNH.shape, (self.calls * x_BTNH.stride(0), *x_BTNH.stride()[1:]))
        return context.attention(x_BTNH, x_BTNH, x_BTNH, context).flatten(2)


def test_selective_minds_no_stride_of_a_single_row() -> None:
    places = torch.arange(TOKENS)[None]
    context = BlockContext(places, places * 0, SdpaAttention(), document_lengths=((TOKENS,),))
    gradients = []
    for run in (lambda block, *given: block(*given), recomputation.run_with_kept_attention):
        hidden_BTD = torch.linspace(-2, 2, TOKENS * 32).view(1, TOKENS, 32).requires_grad_()
        run(ChangingStride(), hidden_BTD, context).square().sum().backward()
        gradients.append(hidden_BTD.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_a_forward_outlives_its_backward(form: str) -> None:
    """No circle holds it: torch's nodes are invisible to Python's collector."""
    model = MODELS["llama"]()
    model.checkpoint_blocks, model.recompute = True, block_runner(form)
    seen: list[weakref.ref[Tensor]] = []
    inner = model.model.layers[1].self_attn.o_proj
    inner.register_forward_pre_hook(lambda module, args: seen.append(weakref.ref(args[0].untyped_storage())))
    gc.disable()
    try:
        for _ in range(2):
            model(batch()).sum().backward()
        dropped = model(batch())
        del dropped
        assert len(seen) == 5  # three forwards, two repetitions
        assert not [each for each in seen if each() is not None]
    finally:
        gc.enable()


def test_a_block_that_changes_the_output_of_attention_in_place_is_told() -> None:
    class Changing(nn.Module):
        def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
            heads = x_BTD.unflatten(-1, (2, -1)) * 1
            out = context.attention(heads, heads, heads, context) * 1
            kept = context.attention(heads, heads, out, context)
            return kept.add_(1).sin().flatten(2)

    class Plain:
        def __call__(self, q: Tensor, k: Tensor, v: Tensor, context: BlockContext, **options: Any) -> Tensor:
            return q + v

    places = torch.arange(4)[None]
    context = BlockContext(places, places * 0, Plain())
    run = block_runner("selective")
    assert run is not None
    with pytest.raises(ComponentError, match="changes what attention gave it in place"):
        run(Changing(), torch.randn(1, 4, 8, requires_grad=True), context)


class Log:
    """Stands for a device's copies; the host's memory is its device here."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.flying = self.most = 0
        self.made = 0

    def start(self, source: Tensor, device: torch.device) -> tuple[Tensor, Any]:
        self.made += 1
        self.events.append(f"start {self.made}")
        self.flying += 1
        self.most = max(self.most, self.flying)
        return source.clone(), self.made

    def finish(self, mark: Any) -> None:
        self.flying -= 1
        self.events.append(f"finish {mark}")

    def join(self, copy: Tensor, mark: Any) -> None:
        self.events.append(f"join {mark}")


def test_inputs_leave_the_device_two_at_a_time_and_are_fetched_one_ahead() -> None:
    log, places = Log(), torch.arange(4)[None]
    inputs = HostInputs(log)
    context = BlockContext(places, places * 0, SdpaAttention(), shared={"host_inputs": inputs})
    layers = [nn.Linear(8, 8) for _ in range(4)]
    hidden = leaf = torch.randn(1, 4, 8, requires_grad=True)
    for layer in layers:
        hidden = run_with_host_input(Wrapped(layer), hidden, context)
    assert log.most == IN_FLIGHT == 2
    assert log.events == ["start 1", "start 2", "finish 1", "start 3", "finish 2", "start 4"]
    del log.events[:]
    hidden.sum().backward()
    assert log.events[:2] == ["finish 3", "finish 4"]
    assert log.events[2:] == ["start 5", "join 5", "start 6", "join 6", "start 7", "join 7", "start 8", "join 8"]
    found, leaf.grad = leaf.grad, None
    plain = leaf
    for layer in layers:
        plain = layer(plain).sin()
    plain.sum().backward()
    assert torch.equal(found, leaf.grad)


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        return self.inner(x_BTD).sin()
