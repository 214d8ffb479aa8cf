"""A compiled block is one graph with attention in it, whatever its rows hold, and trains what it trains without a compiler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from mt_core.nn import Batch, BlockContext, SdpaAttention, short
from mt_core.nn.blocks import Form
from mt_core.nn.rotary import RotaryTables
from mt_core.nn.varlen import document_bounds
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.engine.compilation import compile_blocks, rotaries_of
from mt_train.engine.document_attention import attend_documents
from mt_train.engine.graph_attention import KEY, Documents, GraphAttention

CONFIG = LlamaConfig(vocab_size=97, dim=32, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=48, max_seq_len=128)
ROWS = (((64,), (64,)), ((20, 44), (64,)), ((10, 10, 44), (30, 34)), ((1, 1, 62), (1, 30, 33)), ((7,) * 9 + (1,),) * 2)
"""Lengths of the documents of two rows, of five batches."""


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def inputs(length: int = 48, *, width: int = 8, heads: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, length, heads, 8), (2, length, 2, 8), (2, length, 2, width)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def results(function: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    out = function(*tensors)
    weight = torch.arange(out.numel(), dtype=torch.float32).view(out.shape).cos().to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), tensors)]


def masked(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[tuple[int, ...], ...], form: Form) -> Tensor:
    """torch's own attention with a mask of all pairs; soft-caps by the formula."""
    place = torch.arange(q.shape[1])
    back = place[:, None] - place
    documents = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in lengths])
    starts = torch.stack([torch.cat([torch.arange(size) for size in row]) for row in lengths])
    visible = (documents[:, :, None] == documents[:, None]) & (back >= 0)
    if form.window is not None:
        visible = visible & (back < form.window)
    if form.chunk is not None:
        visible = visible & (starts[:, :, None] // form.chunk == starts[:, None] // form.chunk)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // 2, 1) for x in (k, v))
    if form.softcap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None], scale=form.scale).transpose(1, 2)
    scores = form.softcap * torch.tanh(q @ k.mT * (form.scale or 8**-0.5) / form.softcap)
    return (scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1) @ v).transpose(1, 2)


FORMS = {
    "plain": Form(),
    "scale": Form(scale=0.5),
    "window": Form(window=7),
    "wide window": Form(window=400),
    "softcap": Form(softcap=2.0),
    "chunk": Form(chunk=9),
    "all": Form(scale=0.3, window=5, softcap=3.0, chunk=11),
}
PACKINGS = {"whole": ((48,), (48,)), "alike": ((5, 43), (5, 43)), "packed": ((5, 42, 1), (20, 28))}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("form", FORMS)
def test_the_operator_equals_torch_with_a_mask_over_all_pairs(form: str, packing: str) -> None:
    lengths = PACKINGS[packing]
    ours = results(partial(attend_documents, bounds=document_bounds(lengths), form=FORMS[form]), inputs())
    theirs = results(partial(masked, lengths=lengths, form=FORMS[form]), inputs())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("width", [4, 8, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_blocks", [False, True])
def test_it_gives_the_bits_of_the_attention_that_is_not_compiled(
    width: int, dtype: torch.dtype, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels, too: short documents in blocks of queries where the processor is faster so."""
    monkeypatch.setattr(short, "processor_has", lambda *features: in_blocks and "avx512_bf16" in features)
    lengths = ((30, 17, 1), (48,))
    ids = torch.tensor([[number for number, size in enumerate(row) for _ in range(size)] for row in lengths])
    context = BlockContext(ids, ids, SdpaAttention(), document_lengths=lengths)
    tensors = inputs(width=width, dtype=dtype)
    ours = results(partial(attend_documents, bounds=document_bounds(lengths), form=Form()), tensors)
    theirs = results(partial(SdpaAttention(), context=context), tensors)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6 * (width > 8), atol=1e-6 * (width > 8))  # bits, unless padded


@pytest.mark.parametrize("form", ["plain", "window"])
def test_the_operator_keeps_torchs_rules_for_operators(form: str) -> None:
    """Shapes and strides on paper, gradients, no output in the memory of another tensor: torch's own checks."""
    scale, window, softcap, _, chunk = FORMS[form]
    given = (*inputs(), document_bounds(PACKINGS["packed"]), scale, window, softcap, chunk)
    torch.library.opcheck(torch.ops.mt_train.attend_documents.default, given)


# ----------------------------------------------------------------------------------------------------------------- blocks


def model_of(config: LlamaConfig = CONFIG, **options: Any) -> Llama:
    torch.manual_seed(0)
    model = Llama(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    for block in model.model.layers:
        block.self_attn.options = options
    return model


def batch_of(lengths: tuple[tuple[int, ...], ...]) -> Batch:
    ids = torch.tensor([[number for number, size in enumerate(row) for _ in range(size)] for row in lengths])
    positions = torch.tensor([[place for size in row for place in range(size)] for row in lengths])
    tokens = torch.randint(0, 97, ids.shape, generator=torch.Generator().manual_seed(1))
    return Batch(input_ids=tokens, labels=tokens, positions=positions, document_ids=ids).with_index()


def trained(model: Llama, batch: Batch) -> dict[str, Tensor]:
    """The hidden states, and the gradients of all parameters."""
    model.zero_grad()
    hidden = model(batch)
    (
        hidden * torch.arange(hidden.numel()).view(hidden.shape).cos()
    ).sum().backward()  # of squares behind a norm it would be 0
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"hidden": hidden.detach(), **found}


def compile_as_graphs(model: Llama, backend: str, *, packs: bool = True) -> None:
    model.attention = GraphAttention(SdpaAttention(), packs=packs)
    compile_blocks(model.model.layers, backend=backend, fullgraph=True)


def assert_same_training(model: Llama, plain: Llama, lengths: tuple[tuple[int, ...], ...]) -> None:
    ours, theirs = trained(model, batch_of(lengths)), trained(plain, batch_of(lengths))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name] - value).norm() <= 1e-6 * value.norm(), name


@pytest.mark.parametrize("options", [{}, {"window": 7}, {"softcap": 3.0}, {"window": 9, "chunk": 11, "scale": 0.3}])
@pytest.mark.parametrize("packs", [False, True])
def test_blocks_are_one_graph_that_no_packing_compiles_anew(options: dict[str, Any], packs: bool) -> None:
    plain = model_of(**options)
    model = copy.deepcopy(plain)
    compile_as_graphs(model, "aot_eager", packs=packs)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ROWS if packs else ROWS[:1]:
            assert_same_training(model, plain, lengths)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("options", [{}, {"window": 7}])
def test_inductor_is_no_further_from_fp64(options: dict[str, Any]) -> None:
    """It rounds in other places, by which fp32 differs by some 1e-6; it is at most twice as far from fp64 as blocks without it."""
    plain = model_of(**options)
    exact, model = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    compile_as_graphs(model, "inductor")
    for lengths in ROWS[1:3]:
        ours, theirs, true = (trained(each, batch_of(lengths)) for each in (model, plain, exact))
        for name, value in true.items():
            far, plain_far = ((each[name] - value).norm() / value.norm() for each in (ours, theirs))
            assert far <= max(2 * plain_far, 1e-6), (name, far, plain_far)
    assert counters["stats"]["unique_graphs"] == 1


def test_sinks_stay_outside_and_train_the_same() -> None:
    plain = model_of(sinks_N=torch.tensor([0.5, -1.0, 0.0, 2.0]))
    model = copy.deepcopy(plain)
    model.attention = GraphAttention(SdpaAttention(), packs=True)
    SdpaAttention.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]
    compile_blocks(model.model.layers, backend="aot_eager")
    assert_same_training(model, plain, ROWS[2])
    assert any("SdpaAttention.__call__" in text for text in counters["graph_break"])


def test_generation_does_not_need_the_graph() -> None:
    model = model_of()
    expected = model(batch_of(((6,),)))
    model.attention = GraphAttention(SdpaAttention(), packs=True)
    assert torch.equal(model(batch_of(((6,),))), expected), (
        "a model that nobody compiled has no documents in its context"
    )


def test_tables_of_all_blocks_are_made_before_the_first() -> None:
    model = model_of()
    (rotary,) = rotaries_of(model.model.layers[0])
    assert rotary is model.model.layers[1].self_attn.rotary


# ------------------------------------------------------------------------------------------- the graph of a GPU, on paper


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors of a GPU that have shapes and no memory: what a compiler makes of a block is seen without one; no backward."""
    for name in ("kaiming_uniform_", "normal_", "uniform_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *given, **named: tensor)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield


class Graphs:
    """A backend that notes the attention kernels of each graph."""

    def __init__(self) -> None:
        self.kernels: list[list[str]] = []

    def __call__(self, graph: Any, given: Any) -> Any:
        names = [
            getattr(node.target, "__name__", str(node.target))
            for node in graph.graph.nodes
            if node.op == "call_function"
        ]
        self.kernels.append([name for name in names if "attn" in name or "attention" in name])
        return graph.forward


def run_on_paper(graphs: Graphs, documents: list[tuple[int, bool]], dtype: torch.dtype, **options: Any) -> None:
    """Run a block on rows of so many documents, each of which fills a row or not."""
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        block = Llama(CONFIG).model.layers[0]
    torch.set_default_dtype(torch.float32)
    block.self_attn.options = options
    attention = GraphAttention(SdpaAttention(), packs=True)
    compiled = torch.compile(block._call_impl, dynamic=False, backend=graphs, fullgraph=True)
    for count, fills in documents:
        places = torch.zeros(2, 64, dtype=torch.long, device="cuda")
        context = BlockContext(places, places, attention)
        table = torch.empty(2, 64, 1, 4, device="cuda")
        context.shared[block.self_attn.rotary._key] = RotaryTables(table, table)
        bounds = torch.empty(count + 1, dtype=torch.int32, device="cuda")
        torch._dynamo.mark_dynamic(bounds, 0)
        context.shared[KEY] = Documents(bounds, fills)
        assert compiled(torch.empty(2, 64, 32, device="cuda", dtype=dtype), context).shape == (2, 64, 32)


@pytest.mark.parametrize("options", [{}, {"window": 7}, {"scale": 0.3}])
def test_on_a_gpu_packed_rows_and_windows_are_torchs_kernel_in_one_graph(paper: None, options: dict[str, Any]) -> None:
    graphs = Graphs()
    run_on_paper(graphs, [(2, False), (5, False), (90, False)], torch.bfloat16, **options)
    assert [["varlen" in name for name in kernels] for kernels in graphs.kernels] == [[True]]


def test_on_a_gpu_rows_of_one_document_are_torchs_plain_attention(paper: None) -> None:
    graphs = Graphs()
    run_on_paper(graphs, [(2, True), (2, True)], torch.float32)
    assert graphs.kernels == [["scaled_dot_product_attention"]]


@pytest.mark.parametrize(("dtype", "options"), [(torch.bfloat16, {"softcap": 3.0}), (torch.float32, {})])
def test_on_a_gpu_soft_caps_and_packed_rows_in_fp32_stay_outside(dtype: torch.dtype, options: dict[str, Any]) -> None:
    seen: list[Any] = []
    with FakeTensorMode():
        q, k = (torch.empty(2, 8, heads, 8, device="cuda", dtype=dtype) for heads in (4, 2))
        bounds = torch.empty(4, device="cuda", dtype=torch.int32)
        context = BlockContext(bounds, bounds, SdpaAttention(), shared={KEY: Documents(bounds, False)})
        GraphAttention(lambda *given, **named: seen.append(named) or q, packs=True)(q, k, k, context, **options)  # type: ignore[arg-type]
    assert seen == [options]
