"""Products in blocks have the bits of the plain ones, and are taken only where that was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from twins import LatinTokenizer

from mt_core.nn import KVCache
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.generation import products
from mt_train.generation.decoder import Decoder
from mt_train.generation.forward import last_logits, make_batch
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.products import (
    BLOCK,
    LEAST_WEIGHTS,
    LEAST_WEIGHTS_OF_LAYER,
    ROWS,
    head_in_blocks,
    layers_in_blocks,
    multiply_in_blocks,
)
from mt_train.generation.request import Request
from mt_train.generation.sampling import SamplingRules

MEASURED = ROWS.get(torch.backends.cpu.get_cpu_capability(), ())
needs_measured_processor = pytest.mark.skipif(
    not MEASURED, reason="the order of sums was measured with AVX2 and AVX-512"
)


@needs_measured_processor
@pytest.mark.parametrize("width", [96, 512, 1000, 2048])
def test_blocks_have_the_bits_of_the_plain_product(width: int) -> None:
    dice = torch.Generator().manual_seed(width)
    weight = torch.randn(8 * BLOCK, width, generator=dice)
    for rows in sorted({2, 3, 4, 8, 11, 15, 17, 64}.intersection(MEASURED)):
        hidden = torch.randn(rows, width, generator=dice)
        assert torch.equal(multiply_in_blocks(hidden, weight), nn.functional.linear(hidden, weight)), rows


def test_blocks_are_the_product_in_float64() -> None:
    """To the rounding, which is none in float64."""
    hidden, weight = torch.randn(5, 33, dtype=torch.float64), torch.randn(3 * BLOCK, 33, dtype=torch.float64)
    torch.testing.assert_close(multiply_in_blocks(hidden, weight), hidden @ weight.T, atol=1e-12, rtol=1e-12)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each product that is made in blocks."""
    counted = list[int]()

    def multiply(hidden_BD: Tensor, weight_VD: Tensor) -> Tensor:
        counted.append(len(hidden_BD))
        return multiply_in_blocks(hidden_BD, weight_VD)

    monkeypatch.setattr(products, "multiply_in_blocks", multiply)
    return counted


@pytest.mark.parametrize(("instructions", "rows"), ROWS.items())
def test_only_what_was_measured_is_multiplied_in_blocks(
    instructions: str, rows: range, monkeypatch: pytest.MonkeyPatch, blocks: list[int]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    width = LEAST_WEIGHTS // (32 * BLOCK)
    head, hidden = nn.Linear(width, 32 * BLOCK, bias=False), torch.zeros(8, width)

    def in_blocks(head: nn.Module, hidden: Tensor) -> bool:
        blocks.clear()
        with torch.no_grad(), head_in_blocks(head, hidden):
            head(hidden)
        return blocks == [len(hidden)]

    taken = [count for count in range(1, 80) if in_blocks(head, torch.zeros(count, width))]
    assert taken == list(rows)
    with pytest.raises(RuntimeError, match="same dtype"):
        in_blocks(head, hidden.bfloat16())
    assert not blocks, "two precisions"
    assert not in_blocks(nn.Linear(width, 32 * BLOCK, bias=False).bfloat16(), hidden.bfloat16())
    assert not in_blocks(nn.Linear(width, 32 * BLOCK), hidden), "a bias"
    assert not in_blocks(nn.Linear(width, 32 * BLOCK + 1, bias=False), hidden), "no whole blocks"
    assert not in_blocks(nn.Linear(width, 31 * BLOCK, bias=False), hidden), "a small weight"
    seen: list[int] = []
    head.register_forward_pre_hook(lambda *_: seen.append(1))
    assert in_blocks(head, hidden)
    assert seen == [1], "a hook that has to run"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert not in_blocks(nn.Linear(width, 32 * BLOCK, bias=False), hidden), "another processor"


needs_faster_layers = pytest.mark.skipif(
    (torch.backends.cpu.get_cpu_capability(), 1) not in LEAST_WEIGHTS_OF_LAYER,
    reason="blocks in layers were measured to be faster with AVX-512",
)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def large() -> Llama:
    """Two layers, whose MLPs have weights that are large enough."""
    torch.manual_seed(2)
    config = LlamaConfig(vocab_size=259, dim=512, ffn_dim=1408, n_layers=2, n_heads=8, n_kv_heads=4, max_seq_len=128)
    model = Llama(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.1)
    return model.eval()


@needs_faster_layers
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("rows", [1, 3, 4, 8, 11, 15, 16])
def test_layers_in_blocks_give_the_bits_of_plain_layers(
    large: Llama, rows: int, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids_B6 = torch.randint(0, 256, (rows, 6), generator=torch.Generator().manual_seed(rows))

    def logits() -> Tensor:
        cache, steps = KVCache(), list[Tensor]()
        for begin, end in ((0, 2), (2, 3), (3, 4), (4, 6)):
            positions = torch.arange(begin, end).expand(rows, -1)
            steps.append(last_logits(large, make_batch(ids_B6[:, begin:end], positions), cache))
        return torch.stack(steps)

    with torch.inference_mode():
        in_blocks = logits()
        taken = [count for count in (2 * rows, rows, rows, 2 * rows) if count in MEASURED]
        assert blocks == [count for count in taken for _ in range(2 * 3)], "gate, up and down of two layers"
        monkeypatch.setattr(products, "LEAST_WEIGHTS_OF_LAYER", {})
        assert torch.equal(in_blocks, logits())


@needs_faster_layers
@pytest.mark.usefixtures("one_thread")
def test_texts_and_their_figures_are_those_of_plain_layers(
    large: Llama, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests come and go, so that steps have 1 to 12 rows."""
    loaded, dice = LoadedModel(large, LatinTokenizer(), 128), torch.Generator().manual_seed(3)
    requests = [
        Request(
            ids=torch.randint(0, 256, (3 + 2 * number,), generator=dice).tolist(),
            rules=SamplingRules(greedy=True) if number % 2 else SamplingRules(temperature=0.8),
            most=4 + 3 * number,
            seed=number,
            top_logprobs=2,
        )
        for number in range(12)
    ]

    def answers() -> list[object]:
        decoder = Decoder(loaded, max_rows=12)
        for request in requests:
            decoder.add(request)
        said = list[object]()
        while decoder.busy:
            said += decoder.step()
        return said

    in_blocks = answers()
    assert {4, 8, 12} < set(blocks)
    monkeypatch.setattr(products, "LEAST_WEIGHTS_OF_LAYER", {})
    assert in_blocks == answers()


@pytest.mark.usefixtures("one_thread")
def test_layers_multiply_in_blocks_only_where_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    layers = {
        "large": nn.Linear(512, 1408, bias=False),
        "small": nn.Linear(512, 256, bias=False),
        "biased": nn.Linear(512, 1408),
        "uneven": nn.Linear(512, 1409, bias=False),
        "halved": nn.Linear(512, 1408, bias=False).bfloat16(),
        "own": nn.Linear(512, 1408, bias=False),
    }
    layers["own"].forward = lambda hidden: hidden  # type: ignore[method-assign]
    model = nn.ModuleDict(layers)

    def changed() -> set[str]:
        return {name for name, layer in layers.items() if "forward" in layer.__dict__ and name != "own"}

    def inside(rows: int, device: str = "cpu") -> set[str]:
        with layers_in_blocks(model, torch.zeros(rows, 1, device=device)):
            assert layers["own"](1) == 1, "a forward that another has set stays"
            return changed()

    assert inside(8) == set(), "gradients"
    with torch.no_grad():
        assert [rows for rows in range(1, 80) if inside(rows)] == list(ROWS["AVX512"])
        assert inside(8) == {"large"}
        assert changed() == set(), "gone afterwards"
        assert inside(8, "meta") == set(), "another device"
        with pytest.raises(RuntimeError, match="shapes"), layers_in_blocks(model, torch.zeros(8, 1)):
            layers["large"](torch.zeros(8, 3))
        assert changed() == set(), "after an error too"
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
        assert inside(8) == set(), "another processor"
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
        torch.set_num_threads(2)
        assert inside(8) == set(), "with two threads a weight has to be larger"


@pytest.mark.usefixtures("one_thread")
def test_a_layer_in_blocks_is_the_plain_one_for_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for other rows than the model's, as experts get, and for another precision. To the rounding, on any processor."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    layer = nn.Linear(512, 1408, bias=False)
    with torch.no_grad():
        for shape in [(8, 1, 512), (1, 8, 512), (2, 4, 512), (8, 512), (3, 512), (0, 512), (2, 2, 2, 512)]:
            hidden = torch.randn(shape)
            with layers_in_blocks(layer, torch.zeros(8, 1)):
                torch.testing.assert_close(layer(hidden), nn.functional.linear(hidden, layer.weight))
