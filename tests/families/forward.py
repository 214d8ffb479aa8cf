"""Tests that a family subclasses: what it computes is what transformers computes.

A subclass gives names of cases; its fixture ``pair`` makes a case in both, with the same random weights. Texts are longer than windows
and original lengths, norms are away from 1 and biases from 0, where a fault would hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mt_conformance.forward import generate_greedily
from mt_core.nn import Batch, KVCache, TrainModel

TOLERANCE = 1e-5
"""Relative, per tensor. fp32 has 6e-8; sums of a hundred terms in another order make some 1e-6."""
PIECES = [(0, 17), (17, 18), (18, 25), (25, 40)]
"""What a cache is filled with: more than windows and original lengths, one token, few, more again."""
LENGTHS = {"one document": [40], "packed": [9, 20, 11]}

Pair = tuple[Any, PreTrainedModel]
MakePair = Callable[..., Pair]
Distance = Callable[[torch.Tensor, torch.Tensor], float]


class BaseCases:
    """Tests whose parameters are attributes of the class."""

    parameters: ClassVar[Mapping[str, str]] = {}
    """Argument of a test → the attribute that lists its values."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make each value a test of its own."""
        for name, attribute in self.parameters.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, list(getattr(self, attribute)))


class BaseForward(BaseCases):
    """Logits and gradients are those of transformers, and a cache changes nothing."""

    parameters = {"case": "cases", "given": "texts", "cached": "cached_cases"}
    cases: ClassVar[Iterable[str]]
    cached_cases: ClassVar[Iterable[str]]
    texts: ClassVar[Mapping[str, list[int]]] = LENGTHS
    untrained: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of parameters that are buffers in transformers, without a gradient."""

    def test_logits_and_gradients_equal_transformers_within_1e_5(
        self, case: str, given: str, pair: MakePair, distance: Distance, record: Callable[..., None]
    ) -> None:
        ours, theirs = pair(case)
        batch = rows(self.texts[given])
        pieces = batch.input_ids.split(self.texts[given], 1)
        logits, expected = ours.head(ours(batch)), torch.cat([theirs(piece).logits for piece in pieces], 1)
        weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
        (logits * weight).sum().backward()
        (expected * weight).sum().backward()
        gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
        trained = {name: p for name, p in ours.named_parameters() if not name.endswith(self.untrained)}
        worst = {name: distance(p.grad, gradients[name]) for name, p in trained.items()}
        record(type(ours).__name__, case, given, distance(logits, expected), max(worst.values()))
        assert distance(logits, expected) < TOLERANCE
        assert set(worst) == set(gradients)
        assert max(worst.values()) < TOLERANCE, max(worst.items(), key=lambda item: item[1])

    def test_a_cache_filled_in_pieces_gives_what_one_forward_gives(
        self, cached: str, pair: MakePair, distance: Distance
    ) -> None:
        ours, _ = pair(cached)
        batch, cache = rows([40]), KVCache()
        pieces = [ours(cut(batch, start, end), cache) for start, end in PIECES]
        assert distance(torch.cat(pieces, 1), ours(batch)) < TOLERANCE
        assert cache.length == 40


class BaseOptions(BaseForward):
    """Options bend what these small models say: a family that ignored one would be seen above."""

    parameters = {**BaseForward.parameters, "option": "without"}
    without: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]]
    """What is switched off → the case that has it, and the changes of its config."""

    def test_each_option_matters_in_these_tests(self, option: str, pair: MakePair, distance: Distance) -> None:
        case, changes = self.without[option]
        ours, _ = pair(case)
        plain = type(ours)(ours.config.model_copy(update=changes))
        plain.load_state_dict(ours.state_dict())
        assert distance(plain(rows([40])), ours(rows([40]))) > 1e-3


class BaseMasks(BaseForward):
    """A token sees what came before it in its document, and bf16 rounds no more than it must."""

    parameters = {**BaseForward.parameters, "masked": "masked_cases", "rounded": "rounded_cases"}
    masked_cases: ClassVar[Iterable[str]]
    rounded_cases: ClassVar[Iterable[str]]
    rounding: ClassVar[float] = 5e-2
    """bf16 keeps 8 bits: 4e-3 a rounding, and three or four layers of them."""

    def test_later_tokens_never_change_earlier_outputs(self, masked: str, pair: MakePair) -> None:
        ours, _ = pair(masked)
        batch = rows([40])
        assert torch.equal(ours(batch)[:, :25], ours(shift(batch, 25, 40))[:, :25])

    def test_documents_in_one_row_never_see_each_other(self, masked: str, pair: MakePair, distance: Distance) -> None:
        """Changing one document leaves the others bit for bit; each equals itself alone in a row."""
        ours, _ = pair(masked)
        batch = rows([9, 20, 11])
        packed, other = ours(batch), ours(shift(batch, 9, 29))
        assert torch.equal(packed[:, :9], other[:, :9])
        assert torch.equal(packed[:, 29:], other[:, 29:])
        assert not torch.equal(packed[:, 9:29], other[:, 9:29])
        for start, end in [(0, 9), (9, 29), (29, 40)]:
            alone = ours(cut(batch, start, end).with_index())
            assert distance(packed[:, start:end], alone) < TOLERANCE

    def test_bf16_stays_near_fp32(self, rounded: str, pair: MakePair, distance: Distance) -> None:
        ours, _ = pair(rounded)
        exact = ours(rows([40]))
        assert distance(ours.bfloat16()(rows([40])).float(), exact) < self.rounding


class BaseGreedy(BaseCases):
    """Greedy tokens are those of transformers."""

    parameters = {"generated": "generated_cases", "length": "prompt_lengths"}
    generated_cases: ClassVar[Iterable[str]]
    prompt_lengths: ClassVar[Iterable[int]]
    new_tokens: ClassVar[int] = 40

    def test_greedy_output_equals_transformers_token_for_token(
        self, generated: str, length: int, pair: MakePair
    ) -> None:
        ours, theirs = pair(generated)
        prompt = torch.randint(0, 61, (length,), generator=torch.Generator().manual_seed(length)).tolist()
        expected = generate_by_transformers(theirs, prompt, self.new_tokens)
        assert generate_greedily(ours.eval(), [prompt], self.new_tokens) == [expected]
        assert len(set(expected)) > 3, "a model that repeats itself shows nothing"


class BaseBatchedGreedy(BaseGreedy):
    """Greedy tokens are those of transformers, and a batch changes none."""

    parameters = {**BaseGreedy.parameters, "batched": "batched_cases"}
    batched_cases: ClassVar[Iterable[str]]

    def test_a_batch_gives_the_greedy_tokens_of_one_prompt_at_a_time(self, batched: str, pair: MakePair) -> None:
        """Prompts are shorter and longer than the window, padded on the left; some end before others."""
        ours = pair(batched)[0].eval()
        prompts = [list(range(1, 20)), [3], [40, 2, 8, 8, 1, 60], list(range(30, 60))]
        assert generate_greedily(ours, prompts, 25) == [generate_greedily(ours, [prompt], 25)[0] for prompt in prompts]


def draw_vectors(theirs: PreTrainedModel, low: float = 0.5, high: float = 1.5) -> None:
    """Draw norms and biases anew."""
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            parameter.uniform_(low, high)


def make_models(
    model: type[TrainModel],
    config: Any,
    described: Mapping[str, Any],
    *,
    draw: Callable[[PreTrainedModel], None] = draw_vectors,
    **implementations: str,
) -> Pair:
    """Make ``config`` in both with the same random weights; ``described`` is its ``config.json``."""
    torch.manual_seed(7)
    theirs_config = AutoConfig.for_model(**{**described, "initializer_range": 0.2})
    theirs = AutoModelForCausalLM.from_config(theirs_config, attn_implementation="eager", **implementations)
    with torch.no_grad():
        draw(theirs)
    ours = model(config)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def generate_by_transformers(theirs: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Continue one prompt greedily, through tokens that would end a text too."""
    theirs.eval()
    theirs.generation_config.eos_token_id = theirs.generation_config.bos_token_id = None
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    answer = theirs.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0)
    return answer[0, len(prompt) :].tolist()


def rows(lengths: list[int], count: int = 2) -> Batch:
    """Draw rows of documents with these lengths."""
    ids = torch.randint(0, 61, (count, sum(lengths)), generator=torch.Generator().manual_seed(3))
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(count, -1)
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).expand(count, -1)
    sizes = torch.repeat_interleave(torch.tensor(lengths), torch.tensor(lengths)).expand(count, -1)
    return Batch(ids, torch.zeros_like(ids), positions, documents, lengths=sizes).with_index()


def cut(batch: Batch, start: int, end: int) -> Batch:
    """Cut the same places out of every row."""
    return Batch(*(x[:, start:end] for x in (batch.input_ids, batch.labels, batch.positions, batch.document_ids)))


def shift(batch: Batch, start: int, end: int) -> Batch:
    """Put other tokens at these places of every row."""
    ids = batch.input_ids.clone()
    ids[:, start:end] = (ids[:, start:end] + 5) % 61
    return Batch(ids, batch.labels, batch.positions, batch.document_ids, lengths=batch.lengths).with_index()
