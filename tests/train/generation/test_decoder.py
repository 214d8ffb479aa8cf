"""Rows join and leave at random moments, and no text notices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mt_conformance.forward import Numbers
from mt_core.errors import UsageError
from mt_core.generation import SamplingRules
from mt_core.nn import Batch, KVCache, TrainModel
from mt_plugin_gemma.config import GemmaConfig
from mt_plugin_gemma.model import Gemma
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_plugin_qwen.config import QwenConfig
from mt_plugin_qwen.model import Qwen
from mt_train.generation.choices import Choices
from mt_train.generation.decoder import Decoder
from mt_train.generation.forward import last_logits
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.prompt_thread import PromptThread
from mt_train.generation.request import Request, TokenOutput

GREEDY = SamplingRules(greedy=True)
RULES = [
    GREEDY,
    SamplingRules(),
    SamplingRules(temperature=0.7, top_k=20),
    SamplingRules(top_p=0.9, repetition_penalty=1.3),
    SamplingRules(min_p=0.02, frequency_penalty=0.4, no_repeat_ngram=3, min_new_tokens=3),
]
WORDS, END = 61, 60
SHAPE: dict[str, Any] = {"vocab_size": WORDS, "max_seq_len": 256, "dim": 48, "n_layers": 3, "n_heads": 4, "ffn_dim": 64}
BUILDS: dict[str, Callable[[], TrainModel]] = {
    "Llama": lambda: Llama(LlamaConfig(**SHAPE, n_kv_heads=2)),
    "Gemma 2, soft-caps and windows": lambda: Gemma(
        GemmaConfig(
            **SHAPE,
            n_kv_heads=2,
            head_dim=16,
            generation=2,
            attention_softcap=5.0,
            final_softcap=3.0,
            query_scalar=24.0,
            window=7,
            global_every=2,
        )
    ),
    "Qwen 3": lambda: Qwen(QwenConfig(**SHAPE, n_kv_heads=2, head_dim=16, generation=3)),
}


class Letters:
    """One token a letter, ``a`` is 0."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + number) for number in ids)


def build(name: str) -> LoadedModel:
    """Weights so wide that attention, and with it a wrong position or mask, decides."""
    torch.manual_seed(3)
    model = BUILDS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.25 if parameter.dim() > 1 else 0.1)
            if parameter.dim() == 1 and not name.startswith("Gemma"):
                parameter.add_(1.0)
    return LoadedModel(model, Numbers(), 256, (END,))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=BUILDS)
def family(request: pytest.FixtureRequest) -> LoadedModel:
    return build(request.param)


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return build("Llama")


def make_requests(count: int, seed: int = 0, **more: Any) -> list[Request]:
    """Conversations of other lengths, rules and seeds; some begin alike, and some are the same."""
    chance = random.Random(seed)
    shared = [chance.randrange(END) for _ in range(30)]
    found = []
    for index in range(count):
        own = [chance.randrange(END) for _ in range(chance.choice([1, 3, 10, 25, 70]))]
        ids = [*shared, *own] if index % 3 == 0 else found[-1].ids if index % 7 == 1 else own
        rules, most = RULES[index % len(RULES)], chance.choice([1, 5, 20, 40])
        wished = {"rules": rules, "most": most, "end_ids": (END,), "seed": 5, "index": index, **more}
        found.append(
            Request(ids=ids, **{**wished, "rules": replace(rules, min_new_tokens=min(most, rules.min_new_tokens))})
        )
    return found


def finish(decoder: Decoder) -> list[TokenOutput]:
    found = []
    while decoder.busy:
        found += decoder.step()
    return found


def texts(produced: Sequence[TokenOutput]) -> dict[int, tuple[list[int], str, str | None]]:
    """Number → its tokens, its text, and why it ended."""
    found: dict[int, tuple[list[int], str, str | None]] = {}
    for each in produced:
        assert each.error is None
        tokens, text, finish = found.get(each.number, ([], "", None))
        assert finish is None, "nothing comes after the last token"
        found[each.number] = ([*tokens, each.token], text + each.text, each.finish)
    return found


ALONE: dict[tuple[int, str], tuple[Any, LoadedModel, Request]] = {}
"""Texts that several tests compare with; model and request stay, so that their numbers and words stand for them."""


def decode_alone(loaded: LoadedModel, requests: Sequence[Request]) -> list[Any]:
    found = []
    for request in requests:
        key = id(loaded), repr(request)
        if key not in ALONE:
            decoder = Decoder(loaded, max_rows=1)
            number = decoder.add(request)
            ALONE[key] = texts(finish(decoder))[number], loaded, request
        found.append(ALONE[key][0])
    return found


@pytest.fixture
def prompt_thread() -> Iterator[PromptThread]:
    thread = PromptThread()
    yield thread
    thread.close()


@pytest.mark.parametrize(("others", "beside"), [(3, False), (8, False), (5, True)])
def test_a_text_does_not_depend_on_who_runs_beside_it(
    family: LoadedModel, prompt_thread: PromptThread, others: int, beside: bool
) -> None:
    """40 conversations, greedy and drawn, which join at random moments; long prompts come in pieces between the steps of others, or beside
    them in a thread."""
    requests, chance = make_requests(40), random.Random(others)
    decoder = Decoder(family, max_rows=1 + others, prefill_tokens=32, prompt_thread=prompt_thread if beside else None)
    waiting, produced, most = list(requests), [], 0
    while waiting or decoder.busy:
        for _ in range(chance.choice([0, 0, 0, 1, 2, 5])):
            if waiting:
                decoder.add(waiting.pop(0))
        most = max(most, len(decoder.running_requests))
        produced += decoder.step()
    found = texts(produced)
    assert most == 1 + others
    assert [found[number] for number in range(40)] == decode_alone(family, requests)
    assert {finish for _, _, finish in found.values()} == {"eos", "length"}


def test_those_enter_that_have_a_row_and_room_in_the_cache(llama: LoadedModel) -> None:
    """Five texts, with rows for three of them, or places of the cache for two: the others wait and do not enter."""
    for limits, entering in (({"max_rows": 3}, (0, 1, 2)), ({"max_rows": 9, "max_tokens": 40}, (0, 1))):
        decoder = Decoder(llama, **limits)
        assert decoder.entering_requests == ()
        for _ in range(5):
            decoder.add(Request(ids=[1] * 10, rules=GREEDY, most=10))
        assert decoder.entering_requests == entering
        decoder.step(prefill_tokens=4)
        assert decoder.entering_requests == entering, "a piece of their prompts is in"
        while decoder.entering_requests == entering:
            decoder.step()
        assert decoder.entering_requests == (), "all places are taken"


def test_a_row_is_replaced_as_soon_as_it_ends(llama: LoadedModel) -> None:
    decoder = Decoder(llama, max_rows=2)
    for most in (3, 1, 1, 2):
        decoder.add(Request(ids=[1, 2], rules=GREEDY, most=most))
    steps = [sorted(each.number for each in decoder.step()) for _ in range(3)]
    assert steps == [[0, 1], [0, 2], [0, 3]]
    assert (decoder.running_requests, decoder.waiting_requests, decoder.busy) == ((3,), (), True)
    assert [each.number for each in decoder.step()] == [3]
    assert not decoder.busy


def test_a_long_prompt_is_taken_in_by_pieces_between_the_steps_of_others(llama: LoadedModel) -> None:
    sizes = []

    def watched(model: TrainModel, batch: Batch, cache: KVCache) -> torch.Tensor:
        sizes.append(tuple(batch.input_ids.shape))
        return last_logits(model, batch, cache)

    decoder = Decoder(llama, max_rows=3, prefill_tokens=40, forward=watched)
    decoder.add(Request(ids=[3], rules=GREEDY, most=30))
    decoder.step()
    decoder.add(Request(ids=list(range(50)) * 2, rules=GREEDY, most=5))
    assert [[each.number for each in decoder.step()] for _ in range(4)] == [[0], [0], [0, 1], [0, 1]]
    assert sizes == [(1, 1), (1, 1), (1, 34), (1, 1), (1, 33), (1, 1), (1, 33), (2, 1)]


def test_what_prompts_begin_with_is_computed_once(llama: LoadedModel) -> None:
    sizes = []

    def watched(model: TrainModel, batch: Batch, cache: KVCache) -> torch.Tensor:
        sizes.append(tuple(batch.input_ids.shape))
        return last_logits(model, batch, cache)

    decoder, beginning = Decoder(llama, max_rows=8, forward=watched), list(range(50))
    prompts = [[*beginning, 1, 2], [*beginning, 3], beginning, [*beginning, 1, 2], [*beginning, 1, 2]]
    requests = [Request(ids=ids, most=6, seed=2, index=index) for index, ids in enumerate(prompts)]
    for request in requests:
        decoder.add(request)
    found = texts(finish(decoder))
    assert sizes[:3] == [(1, 50), (3, 2), (5, 1)]
    assert [found[number] for number in range(5)] == decode_alone(llama, requests)
    assert found[3] != found[4], "they are drawn apart"


@pytest.mark.parametrize(("seed", "beside"), [(0, False), (1, False), (2, True)])
def test_cancelled_rows_leave_no_row_and_no_place_behind(
    llama: LoadedModel, prompt_thread: PromptThread, seed: int, beside: bool
) -> None:
    """100 cancels each: while they wait, while their prompt comes in, while they run, and after their end."""
    chance, thread = random.Random(seed), prompt_thread if beside else None
    decoder = Decoder(llama, max_rows=6, max_tokens=900, prefill_tokens=24, prompt_thread=thread)
    requests, produced, cancelled = make_requests(160, seed), [], set()
    for number, request in enumerate(requests):
        assert decoder.add(request) == number
        produced += decoder.step()
        assert len(decoder.running_requests) <= 6
        while len(cancelled) < 100 and len(cancelled) < number and chance.random() < 0.6:
            gone = chance.choice(
                [each for each in range(max(0, number - 20), number + 1) if each not in cancelled] or [0]
            )
            decoder.cancel(gone)
            cancelled.add(gone)
            assert gone not in (*decoder.running_requests, *decoder.waiting_requests)
    produced += finish(decoder)
    found = texts(produced)
    kept = [number for number in range(160) if number not in cancelled]
    assert [found[number] for number in kept] == decode_alone(llama, [requests[number] for number in kept])
    assert (decoder.running_requests, decoder.waiting_requests, decoder.held_tokens) == ((), (), 0)


@pytest.mark.parametrize(("most", "beside"), [(250, False), (400, False), (1500, False), (400, True)])
def test_the_cache_holds_at_most_what_is_allowed(
    llama: LoadedModel, prompt_thread: PromptThread, most: int, beside: bool
) -> None:
    thread, requests = prompt_thread if beside else None, make_requests(40)
    decoder = Decoder(llama, max_rows=8, max_tokens=most, prefill_tokens=32, prompt_thread=thread)
    together, produced = 0, []
    for request in requests:
        decoder.add(request)
        produced += decoder.step()
        together = max(together, len(decoder.running_requests))
        assert decoder.held_tokens <= most
    while decoder.busy:
        produced += decoder.step()
        assert decoder.held_tokens <= most
    found = texts(produced)
    assert [found[number] for number in range(40)] == decode_alone(llama, requests)
    assert together > 1, "some ran side by side"


def test_what_can_never_run_is_refused(llama: LoadedModel) -> None:
    decoder = Decoder(llama, max_rows=2, max_tokens=50)
    with pytest.raises(UsageError, match="take 59 places of the cache, which has 50"):
        decoder.add(Request(ids=[1] * 40, most=20))
    with pytest.raises(UsageError, match="has 0 tokens"):
        decoder.add(Request(ids=[]))
    with pytest.raises(UsageError, match=r"has 256 tokens .* takes 256 in all"):
        Decoder(llama, max_rows=2).add(Request(ids=[1] * 256))
    with pytest.raises(UsageError, match="no beam search"):
        decoder.add(Request(ids=[1], rules=SamplingRules(num_beams=2)))
    assert not decoder.busy


def test_log_probabilities_are_those_of_a_plain_forward(family: LoadedModel) -> None:
    """Whatever rules choose, and the end token's too; each row is told what it asked for."""
    requests = [replace(each, top_logprobs=(None, 0, 4)[index % 3]) for index, each in enumerate(make_requests(24))]
    decoder = Decoder(family, max_rows=6, prefill_tokens=32)
    for request in requests:
        decoder.add(request)
    produced = finish(decoder)
    ends = 0
    for number, request in enumerate(requests):
        own = [each for each in produced if each.number == number]
        ids = torch.tensor([[*request.ids, *(each.token for each in own)]])
        zeros = torch.zeros_like(ids)
        with torch.inference_mode():
            hidden = family.model(Batch(ids, zeros, torch.arange(ids.shape[1])[None], zeros))
            log_TV = family.model.head(hidden)[0].float().log_softmax(-1)[len(request.ids) - 1 :]
        for each, log_V in zip(own, log_TV, strict=False):
            if request.top_logprobs is None:
                assert (each.logprob, each.top) == (None, ())
                continue
            assert each.logprob == pytest.approx(float(log_V[each.token]), abs=1e-5)
            assert len(each.top) == request.top_logprobs
            assert [value for _, value in each.top] == pytest.approx(
                log_V.topk(len(each.top)).values.tolist(), abs=1e-5
            )
            ends += each.finish == "eos"
    assert ends > 0


def test_each_row_has_its_own_stop_texts_choices_and_ends(llama: LoadedModel) -> None:
    free = decode_alone(llama, [Request(ids=[7], rules=GREEDY, most=12)])[0][0]
    choices = Choices(["ab", "abc", "d"], Letters(), END)  # type: ignore[arg-type]
    requests = [
        Request(ids=[7], rules=GREEDY, most=12),
        Request(ids=[7], rules=GREEDY, most=12, stop=(f" {free[3]}",)),
        Request(ids=[7], rules=GREEDY, most=12, end_ids=(free[5],)),
        Request(ids=[7], rules=GREEDY, most=12, choices=choices, end_ids=(END,)),
        Request(ids=[7] * 250, rules=GREEDY, most=12),
    ]
    decoder = Decoder(llama, max_rows=8)
    for request in requests:
        decoder.add(request)
    found = texts(finish(decoder))
    assert found[0] == (free, " ".join(map(str, free)), "length")
    assert found[1][1:] == (" ".join(map(str, free[: free.index(free[3])])), "stop")
    assert found[2][0][-1] == free[5]
    assert found[2][2] == "eos"
    assert found[3][1] in ("ab", "abc", "d")
    assert found[3][2] == "eos"
    assert (len(found[4][0]), found[4][2]) == (6, "context")


def test_streamed_pieces_add_up_to_the_text(llama: LoadedModel) -> None:
    requests = make_requests(10, streams=True)
    decoder = Decoder(llama, max_rows=4)
    for request in requests:
        decoder.add(request)
    produced = finish(decoder)
    whole = decode_alone(llama, [replace(request, streams=False) for request in requests])
    found = texts(produced)
    assert [found[number] for number in range(10)] == whole
    assert sum(bool(each.text) for each in produced) > 60, "they come token by token"


def test_a_row_that_cannot_go_on_says_why_and_the_others_do_not_notice(llama: LoadedModel) -> None:
    """61 tokens of which none may come twice give no text of 80."""
    requests = [
        Request(ids=[1, 2], rules=GREEDY, most=100),
        Request(ids=[3], rules=SamplingRules(no_repeat_ngram=1), most=80),
    ]
    decoder = Decoder(llama, max_rows=2)
    for request in requests:
        decoder.add(request)
    produced = finish(decoder)
    (failed,) = [each for each in produced if each.error is not None]
    assert (failed.number, failed.finish, failed.is_last) == (1, None, True)
    assert "bar every token" in str(failed.error)
    assert texts([each for each in produced if each.number == 0])[0] == decode_alone(llama, requests[:1])[0]


def test_rows_of_one_length_wait_for_their_like(llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that cannot be padded: no batch ever has padding, or a prompt in pieces, and all texts come."""
    monkeypatch.setattr(llama.model, "ragged_batches", False)
    requests = make_requests(20)

    def watched(model: TrainModel, batch: Batch, cache: KVCache) -> torch.Tensor:
        assert cache.padding_B is None
        assert batch.input_ids.shape[1] == 1 or cache.length == 0
        return last_logits(model, batch, cache)

    decoder = Decoder(llama, max_rows=6, prefill_tokens=8, forward=watched)
    for request in requests:
        decoder.add(request)
    found = texts(finish(decoder))
    assert [found[number] for number in range(20)] == decode_alone(llama, requests)


def test_a_model_in_training_is_run_in_evaluation_mode(llama: LoadedModel) -> None:
    decoder = Decoder(llama, max_rows=1)
    decoder.add(Request(ids=[1], rules=GREEDY, most=2))
    llama.model.train()
    decoder.step()
    assert not llama.model.training


def test_a_bias_moves_its_own_row_alone(llama: LoadedModel) -> None:
    """A bias of 100 forces a token, one of -100 bars it; the rows beside have the texts that they have without."""
    plain = make_requests(6, rules=GREEDY, most=6)
    biased = [replace(each, logit_bias=((7, 100.0),)) if number == 2 else each for number, each in enumerate(plain)]
    found = []
    for requests in (plain, biased):
        decoder = Decoder(llama, max_rows=8)
        for request in requests:
            decoder.add(request)
        found.append(texts(finish(decoder)))
    assert found[1][2][0] == [7] * 6
    assert {number: each for number, each in found[0].items() if number != 2} == {
        number: each for number, each in found[1].items() if number != 2
    }
    first = found[0][2][0][0]
    decoder = Decoder(llama, max_rows=1)
    decoder.add(replace(plain[2], logit_bias=((first, -100.0),)))
    assert texts(finish(decoder))[0][0][0] != first


def test_a_step_takes_one_piece_of_the_prompts_where_it_is_told_to(llama: LoadedModel) -> None:
    requests = make_requests(8)
    whole, parts = Decoder(llama, max_rows=8), Decoder(llama, max_rows=8)
    for request in requests:
        whole.add(request)
        parts.add(request)
    found, pieces = list[TokenOutput](), list[int]()
    while parts.busy:
        before = parts.prompt_tokens
        found += parts.step(prefill_tokens=8)
        pieces.append(parts.prompt_tokens - before)
    assert texts(found) == texts(finish(whole))
    assert max(pieces) <= 8
    assert parts.prompt_tokens == sum(pieces) >= max(len(request.ids) for request in requests)
