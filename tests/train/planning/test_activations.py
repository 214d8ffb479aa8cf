"""What layers are said to keep for the backward is what torch keeps in a real forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from mt_core import ExpertLayout, RouterOptions
from mt_core.nn import Batch, BlockContext, Experts, Layer, Mixture, Router, SdpaAttention
from mt_core.nn.loss import chunk_tokens, chunked_loss
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.engine.build import without_memory
from mt_train.engine.plan import Plan
from mt_train.planning.activations import imitate_run, layer_activations
from mt_train.planning.memory import LayerActivations, activations, head_activations

CONFIG = LlamaConfig(vocab_size=64, max_seq_len=128, dim=64, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=160)
ROWS, TOKENS = 3, 96


def plan(**values: Any) -> Plan:
    known = {"world": 1, "device": "cpu", "dtype": "fp32", "zero_stage": 0, "offload": "none", "clip_norm": None}
    return Plan(**{**known, "micro_batch_size": ROWS, "global_batch_size": ROWS, **values})


def kept_by(model: Llama, batch: Batch) -> int:
    """Bytes of the storages that a real forward and loss keep, weights apart."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch)
    return sum(t.untyped_storage().nbytes() for at, t in seen.items() if at not in own)


class Mixed(Llama):
    """Llama with two of four experts a token."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        for index, block in enumerate(self.model.layers):
            experts = Experts(ExpertLayout(n_experts=4, width=config.dim, hidden=config.ffn_dim))
            block.mlp = Mixture(Router(RouterOptions(n_experts=4, top_k=2), config.dim), experts, index=index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", [Llama, Mixed])
def test_activations_are_within_a_fifth_of_a_real_forwards(
    kind: type[Llama], dtype: torch.dtype, recompute: bool
) -> None:
    torch.manual_seed(0)
    model = kind(CONFIG).to(dtype)
    ids = torch.randint(0, 64, (ROWS, TOKENS))
    places = torch.arange(TOKENS).expand(ROWS, TOKENS)
    batch = Batch(ids, ids, places, torch.zeros_like(ids), None, ()).with_index()
    model.checkpoint_blocks = recompute
    real = kept_by(model, batch)
    with without_memory():
        drawn = kind(CONFIG)
    layers = layer_activations(drawn.layers(), rows=ROWS, tokens=TOKENS, dtype=dtype)
    assert layers is not None
    if recompute:  # the layer that is computed again is not there before the backward
        real += layers[1].kept
    found = activations(plan(), 0, layers, 0, recompute="full" if recompute else None).total
    assert abs(found - real) <= 0.2 * real, (found, real)


@pytest.mark.parametrize(("hooked", "has_kernels"), [(True, False), (False, True), (True, True)])
def test_hooks_of_zero_3_and_kernels_of_liger_leave_gated_mlps_their_hidden_values(
    hooked: bool, has_kernels: bool
) -> None:
    """The bytes that a real forward keeps with hooks on every module."""
    torch.manual_seed(0)
    model = Llama(CONFIG)
    ids = torch.randint(0, 64, (ROWS, TOKENS))
    places = torch.arange(TOKENS).expand(ROWS, TOKENS)
    batch = Batch(ids, ids, places, torch.zeros_like(ids), None, ()).with_index()
    plain = kept_by(model, batch)
    hooks = [module.register_forward_hook(lambda *given: None) for module in model.modules()]
    more = kept_by(model, batch) - plain
    for hook in hooks:
        hook.remove()
    with without_memory():
        layers = Llama(CONFIG).layers()
    counts = []
    for _ in range(2):  # once more, since nothing stays on the layers
        for with_hooks, with_kernels in ((False, False), (hooked, has_kernels)):
            with imitate_run(layers, hooked=with_hooks, has_kernels=with_kernels):
                counted = layer_activations(layers, rows=ROWS, tokens=TOKENS, dtype=torch.float32)
            assert counted is not None
            counts.append(sum(each.kept for each in counted))
    assert counts[:2] == counts[2:]
    assert counts[1] - counts[0] == more == CONFIG.n_layers * 4 * ROWS * TOKENS * CONFIG.ffn_dim


class Attending(nn.Module):
    """Attention with sinks, and values of a width of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Linear(*sizes) for sizes in ((64, 128), (64, 64), (64, 2 * width), (4 * width, 64))
        )
        self.sinks = nn.Parameter(torch.zeros(4))

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        q, k, v = (each(x_BTD).unflatten(2, (heads, -1)) for each, heads in ((self.q, 4), (self.k, 2), (self.v, 2)))
        out: Tensor = self.o(context.attention(q, k, v, context, sinks_N=self.sinks).flatten(2))
        return out


@pytest.mark.parametrize("width", [32, 20, 48])
def test_sinks_and_values_of_another_width_keep_what_they_do_in_a_real_forward(width: int) -> None:
    """Padded values and results included."""
    block = Attending(width)
    layers = [
        Layer("embed", nn.Embedding(9, 64)),
        Layer("block", block),
        Layer("norm", nn.Identity()),
        Layer("head", nn.Identity()),
    ]
    counted = layer_activations(layers, rows=ROWS, tokens=TOKENS, dtype=torch.float32)
    assert counted is not None
    ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    seen: dict[int, Tensor] = {p.untyped_storage().data_ptr(): p for p in block.parameters()}
    own = set(seen)
    with saved_tensors_hooks(lambda x: seen.setdefault(x.untyped_storage().data_ptr(), x) is None or x, lambda x: x):
        block(torch.randn(ROWS, TOKENS, 64, requires_grad=True), BlockContext(ids, ids, SdpaAttention()))
    real = sum(each.untyped_storage().nbytes() for at, each in seen.items() if at not in own)
    assert abs(counted[1].kept - real) <= 0.05 * real, (counted[1].kept, real)


def test_a_stage_keeps_the_micro_batches_that_are_under_way() -> None:
    layers = [LayerActivations(kept=100, entering=10)] * 2
    piped = plan(world=4, pipeline=4, zero_stage=1, micro_batch_size=1, global_batch_size=3)
    sizes = [activations(piped, stage, layers, 0, recompute=None).total for stage in range(4)]
    assert sizes == [600, 600, 400, 200]  # min(stages to come, 3 micro-batches) of 200 bytes
    assert activations(piped, 0, layers, 7, recompute="full").total == 3 * 20 + 100 + 7


def test_the_heads_peak_is_that_of_a_real_loss() -> None:
    """Bytes that a dispatcher sees allocated at once in the loss, against the formula."""
    from torch.utils._python_dispatch import TorchDispatchMode

    alive: dict[int, tuple[Any, int]] = {}
    peak = [0]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            import weakref

            out = func(*args, **(kwargs or {}))
            for each in out if isinstance(out, tuple | list) else [out]:
                if isinstance(each, Tensor):
                    storage = each.untyped_storage()
                    alive[storage.data_ptr()] = weakref.ref(each), storage.nbytes()
            for key in [key for key, (ref, _) in alive.items() if ref() is None]:
                del alive[key]
            peak[0] = max(peak[0], sum(size for _, size in alive.values()))
            return out

    head, hidden = nn.Linear(64, 900, bias=False), torch.randn(1500, 64, requires_grad=True)
    with Watch():
        chunked_loss(head, hidden + 0, torch.zeros(1500, dtype=torch.long))
    expected = head_activations(plan(), tokens=1500, width=64, vocabulary=900, chunk=chunk_tokens(torch.device("cpu")))
    assert abs(expected - peak[0]) <= 0.2 * peak[0], (expected, peak[0])


def test_a_model_that_looks_at_values_cannot_be_counted() -> None:
    class Looks(nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            return torch.zeros(int(ids.max().item()))

    layer = Llama(CONFIG).layers()[0]._replace(module=Looks())
    assert layer_activations([layer, layer, layer, layer], rows=1, tokens=4, dtype=torch.float32) is None
