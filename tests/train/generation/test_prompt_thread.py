"""Prompts that a thread computes beside the rows that run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from twins import LatinTokenizer

from mt_core.generation import SamplingRules
from mt_core.nn import Batch, KVCache, TrainModel
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_train.generation import products, prompt_thread
from mt_train.generation.decoder import Decoder
from mt_train.generation.forward import last_logits
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.prompt_thread import PromptThread
from mt_train.generation.request import Request

GREEDY = SamplingRules(greedy=True)


@pytest.fixture
def thread() -> Iterator[PromptThread]:
    found = PromptThread()
    yield found
    found.close()


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    torch.manual_seed(0)
    shape = {"vocab_size": 128, "dim": 128, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 256}
    return LoadedModel(Llama(LlamaConfig(**shape, max_seq_len=256)).eval(), LatinTokenizer(), 256, ())


def finish(decoder: Decoder) -> int:
    """Step to the end, and return how many steps it took."""
    steps = 0
    while decoder.busy:
        decoder.step()
        steps += 1
    return steps


def test_rows_go_on_while_a_prompt_is_computed(loaded: LoadedModel, thread: PromptThread) -> None:
    """A prompt that takes as long as twenty steps delays none of them, and its text comes afterwards."""
    may_end, threads = threading.Event(), list[tuple[int, str]]()

    def slow(model: TrainModel, batch: Batch, cache: KVCache) -> Tensor:
        threads.append((batch.input_ids.shape[1], threading.current_thread().name))
        if batch.input_ids.shape[1] == 40:
            assert may_end.wait(60)
        return last_logits(model, batch, cache)

    decoder = Decoder(loaded, max_rows=2, forward=slow, prompt_thread=thread)
    decoder.add(Request(ids=[1, 2], rules=GREEDY, most=60))
    decoder.step()
    decoder.add(Request(ids=[3] * 40, rules=GREEDY, most=5))
    for _ in range(20):
        assert [each.number for each in decoder.step(prefill_tokens=64)] == [0]
    assert (decoder.entering_requests, decoder.prompt_tokens) == ((1,), 2)
    may_end.set()
    numbers = [each.number for _ in range(100) if decoder.busy for each in decoder.step(prefill_tokens=64)]
    assert (numbers.count(0), numbers.count(1), decoder.prompt_tokens) == (39, 5, 42)
    of_prompts = {name.startswith("prompts") for size, name in threads if size == 40}
    of_rows = {name.startswith("prompts") for size, name in threads if size < 40}
    assert (of_prompts, of_rows) == ({True}, {False})


def test_a_prompt_is_waited_for_where_no_row_runs_any_more(loaded: LoadedModel, thread: PromptThread) -> None:
    decoder = Decoder(loaded, max_rows=2, prompt_thread=thread)
    decoder.add(Request(ids=[1, 2], rules=GREEDY, most=3))
    decoder.step()
    decoder.add(Request(ids=[3] * 40, rules=GREEDY, most=2))
    assert finish(decoder) <= 6, "no step turns in vain"


def test_rows_go_on_while_a_cancelled_prompt_is_computed(loaded: LoadedModel, thread: PromptThread) -> None:
    """Nobody waits for it; its places are kept until it is through, and a prompt behind it comes in then."""
    may_end = threading.Event()

    def slow(model: TrainModel, batch: Batch, cache: KVCache) -> Tensor:
        if batch.input_ids.shape[1] == 40:
            assert may_end.wait(5)
        return last_logits(model, batch, cache)

    decoder = Decoder(loaded, max_rows=2, max_tokens=200, forward=slow, prompt_thread=thread)
    decoder.add(Request(ids=[1, 2], rules=GREEDY, most=60))
    decoder.step()
    cancelled = decoder.add(Request(ids=[3] * 40, rules=GREEDY, most=5))
    decoder.step(prefill_tokens=64)
    decoder.cancel(cancelled)
    last = decoder.add(Request(ids=[4] * 20, rules=GREEDY, most=5))
    assert decoder.running_requests == (0,)
    for _ in range(10):
        assert [each.number for each in decoder.step(prefill_tokens=64)] == [0]
    may_end.set()
    numbers = [each.number for _ in range(100) if decoder.busy for each in decoder.step(prefill_tokens=64)]
    assert {number: numbers.count(number) for number in numbers} == {0: 48, last: 5}
    assert decoder.held_tokens == 0


def test_a_fault_in_the_thread_is_that_of_a_step(loaded: LoadedModel, thread: PromptThread) -> None:
    def faulty(model: TrainModel, batch: Batch, cache: KVCache) -> Tensor:
        if batch.input_ids.shape[1] == 40:
            raise MemoryError("no memory for the prompt")
        return last_logits(model, batch, cache)

    decoder = Decoder(loaded, max_rows=2, forward=faulty, prompt_thread=thread)
    decoder.add(Request(ids=[1, 2], rules=GREEDY, most=200))
    decoder.step()
    decoder.add(Request(ids=[3] * 40, rules=GREEDY, most=5))
    with pytest.raises(MemoryError, match="no memory for the prompt"):
        finish(decoder)


@pytest.mark.parametrize(
    ("processors", "threads", "ragged", "taken"),
    [(2, 1, True, True), (8, 4, True, True), (1, 1, True, False), (2, 2, True, False), (2, 1, False, False)],
)
def test_a_thread_is_taken_where_processors_are_free_and_forwards_are_independent(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, processors: int, threads: int, ragged: bool, taken: bool
) -> None:
    monkeypatch.setattr(prompt_thread, "count_processors", lambda: processors)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(loaded.model, "ragged_batches", ragged)
    found = PromptThread.where_free(loaded.model)
    assert (found is not None) is taken
    if found is not None:
        found.close()


def test_no_thread_is_taken_for_code_of_others(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may keep in itself what belongs to one forward."""

    class Other(TrainModel):
        def __init__(self, inner: TrainModel) -> None:
            super().__init__()
            self.inner = inner

    monkeypatch.setattr(prompt_thread, "count_processors", lambda: 1024)
    assert PromptThread.where_free(Other(loaded.model)) is None


def test_products_in_blocks_of_two_forwards_at_once_have_the_bits_of_one(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers multiply otherwise while a forward of few rows goes on; another one comes and goes meanwhile."""
    monkeypatch.setattr(products, "ROWS", dict.fromkeys(("DEFAULT", "AVX2", "AVX512"), range(2, 65)))
    least = {(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()): 1}
    monkeypatch.setattr(products, "LEAST_WEIGHTS_OF_LAYER", least)
    hidden = {rows: torch.randn(rows, 128) for rows in (3, 8)}
    layer = next(
        each for each in loaded.model.modules() if isinstance(each, torch.nn.Linear) and len(each.weight) == 256
    )
    wanted, found = {}, dict[int, list[Tensor]]()
    with torch.inference_mode():
        for rows, given in hidden.items():
            with products.layers_in_blocks(loaded.model, given[:, 0]):
                wanted[rows] = layer(given)

    def multiply(rows: int) -> None:
        with torch.inference_mode():
            for _ in range(300):
                with products.layers_in_blocks(loaded.model, hidden[rows][:, 0]):
                    found.setdefault(rows, []).append(layer(hidden[rows]))

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=multiply, args=(rows,)) for rows in hidden]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sys.setswitchinterval(usual)
    for rows in hidden:
        assert len(found[rows]) == 300, "no forward failed"
        assert all(torch.allclose(each, wanted[rows], atol=1e-6) for each in found[rows])
    assert not any("forward" in each.__dict__ for each in loaded.model.modules())
