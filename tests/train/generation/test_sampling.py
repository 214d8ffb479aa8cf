"""Every rule equals transformers' own processor on fixed logits, and their order is transformers' order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from mt_core.errors import MtError
from mt_core.generation import SamplingRules
from mt_train.generation.history import (
    History,
    adjust,
    bar_early_end,
    bar_repeated_ngrams,
    pad_rows,
    penalize_frequency,
    penalize_repetition,
)
from mt_train.generation.sampling import (
    choose,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    scale_temperature,
    warp,
)

NO_IDS = torch.zeros(1, 1, dtype=torch.long)
CPU = torch.device("cpu")
VALUES = st.one_of(st.floats(-20, 20, width=32), st.sampled_from([0.0, 1.0, 1.0, -torch.inf]))
SHARE = st.floats(0.01, 0.99)


@st.composite
def logits(draw_from: st.DrawFn, rows: int = 1) -> Tensor:
    """Random rows with ties and minus infinity; one token at least stays possible."""
    width = draw_from(st.integers(2, 12))
    listed = draw_from(st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=rows, max_size=rows))
    values = torch.tensor(listed, dtype=torch.float32)
    values[:, 0] = values[:, 0].clamp(min=-20)
    return values


IDS = st.lists(st.integers(0, 11), min_size=1, max_size=12)


@settings(deadline=None)
@example(values=torch.zeros(3, 4), share=0.5, k=2, temperature=1.0)  # the bounds are met exactly
@example(values=torch.tensor([[0.0, 0.0, -1.0]] * 3), share=0.25, k=1, temperature=1.0)
@given(values=logits(rows=3), share=SHARE, k=st.integers(1, 15), temperature=st.floats(0.05, 5))
def test_each_warper_equals_the_one_of_transformers(values: Tensor, share: float, k: int, temperature: float) -> None:
    def theirs(warper: object) -> Tensor:
        return warper(NO_IDS, values.clone())  # type: ignore[operator,no-any-return]

    assert torch.equal(scale_temperature(values, temperature), theirs(TemperatureLogitsWarper(temperature)))
    assert torch.equal(keep_top_k(values, k), theirs(TopKLogitsWarper(k)))
    assert torch.equal(keep_top_p(values, share), theirs(TopPLogitsWarper(share)))
    assert torch.equal(keep_min_p(values, share), theirs(MinPLogitsWarper(share)))
    assert torch.equal(keep_min_p(values, 1.0), theirs(MinPLogitsWarper(1.0)))
    assert torch.equal(keep_typical(values, share), theirs(TypicalLogitsWarper(share)))


@settings(deadline=None)
@given(values=logits(), ids=IDS, penalty=st.floats(0.2, 3), size=st.integers(1, 4), least=st.integers(0, 6))
def test_each_rule_that_looks_back_equals_the_one_of_transformers(
    values: Tensor, ids: list[int], penalty: float, size: int, least: int
) -> None:
    ids = [token % values.shape[1] for token in ids]
    rows = torch.tensor([ids])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(rows, values.clone())
    torch.testing.assert_close(penalize_repetition(values, rows, penalty), expected, rtol=0, atol=0)
    assert torch.equal(
        bar_repeated_ngrams(values, rows, size), NoRepeatNGramLogitsProcessor(size)(rows, values.clone())
    )
    prompt, eos_ids = len(ids) // 2, [0, 1]
    expected = MinNewTokensLengthLogitsProcessor(prompt, least, eos_ids)(rows, values.clone())
    assert torch.equal(bar_early_end(values, [ids[prompt:]], eos_ids, least), expected)
    unrowed = [*eos_ids, values.shape[1]]  # a token of the tokenizer that the model has no row for
    expected = MinNewTokensLengthLogitsProcessor(prompt, least, unrowed)(rows, values.clone())
    assert torch.equal(bar_early_end(values, [ids[prompt:]], unrowed, least), expected)


@settings(deadline=None)
@given(values=logits(rows=2), short=IDS, long=IDS, size=st.integers(1, 4))
def test_a_longer_neighbour_changes_no_rule(values: Tensor, short: list[int], long: list[int], size: int) -> None:
    both = pad_rows([short, long], CPU)
    for row, ids in enumerate((short, long)):
        own = torch.tensor([ids])
        one = values[row : row + 1]
        assert torch.equal(penalize_repetition(values, both, 1.3)[row], penalize_repetition(one, own, 1.3)[0])
        assert torch.equal(penalize_frequency(values, both, 0.4, 0.2)[row], penalize_frequency(one, own, 0.4, 0.2)[0])
        assert torch.equal(bar_repeated_ngrams(values, both, size)[row], bar_repeated_ngrams(one, own, size)[0])


@settings(deadline=None)
@given(ids=IDS, frequency=st.floats(-2, 2), presence=st.floats(-2, 2))
def test_frequency_and_presence_follow_openais_formula(ids: list[int], frequency: float, presence: float) -> None:
    values = torch.randn(1, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(len(ids)))
    found = penalize_frequency(values, torch.tensor([ids]), frequency, presence)
    for token in range(12):
        count = ids.count(token)
        expected = float(values[0, token]) - count * frequency - float(count > 0) * presence
        assert float(found[0, token]) == pytest.approx(expected, abs=1e-12)


def test_frequency_and_presence_look_at_the_new_tokens_only() -> None:
    history = History(prompts=[[1, 1]], new=[[2]])
    found = adjust(torch.zeros(1, 4), history, SamplingRules(frequency_penalty=1.0, presence_penalty=0.5))
    assert found.tolist() == [[0.0, 0.0, -1.5, 0.0]]


@pytest.mark.parametrize("seed", range(4))
def test_all_rules_together_equal_what_transformers_builds(
    seed: int, pair: tuple[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list that ``generate`` itself makes, order included."""
    dice = torch.Generator().manual_seed(seed)
    values, ids = torch.randn(2, 97, generator=dice) * 4, torch.randint(0, 97, (2, 30), generator=dice)
    shared = {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9}
    config = GenerationConfig(
        do_sample=True, repetition_penalty=1.3, no_repeat_ngram_size=2, min_new_tokens=25, eos_token_id=[3, 5], **shared
    )
    monkeypatch.setattr(config, "_eos_token_tensor", torch.tensor([3, 5]), raising=False)
    processors = pair[1]._get_logits_processor(config, input_ids_seq_length=10, device="cpu")  # type: ignore[attr-defined]
    rules = SamplingRules(**shared, repetition_penalty=1.3, no_repeat_ngram=2, min_new_tokens=25)
    rows = ids.tolist()
    history = History(prompts=[row[:10] for row in rows], new=[row[10:] for row in rows], eos_ids=[3, 5])
    assert torch.equal(warp(adjust(values, history, rules), rules), processors(ids, values.clone()))


def test_draws_follow_the_probabilities_and_never_take_an_impossible_token() -> None:
    values = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf, 2.0, -torch.inf]])
    dice = torch.Generator().manual_seed(0)
    count = 20_000
    drawn = torch.tensor(draw(values.expand(count, -1), [dice] * count))
    shares = torch.bincount(drawn, minlength=6) / count
    # five standard deviations of a share are at most 5 · sqrt(0.25 / count) = 0.018
    torch.testing.assert_close(shares, values[0].softmax(0), atol=0.018, rtol=0)
    assert set(drawn.tolist()) == {1, 2, 4}


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.5, 2), (1 - 2**-53, 2)])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(
    uniform: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor([uniform], dtype=torch.float64))
    assert draw(torch.tensor([[-torch.inf, 0.0, 0.0]]), [torch.Generator()]) == [token]


def test_a_row_draws_from_its_own_generator() -> None:
    values = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    together = draw(values, [torch.Generator().manual_seed(seed) for seed in range(3)])
    apart = [draw(values[row : row + 1], [torch.Generator().manual_seed(row)])[0] for row in range(3)]
    assert together == apart


def test_a_row_without_a_token_to_choose_says_why_and_the_others_have_theirs() -> None:
    history = History(prompts=[[0, 1, 2], [0]], new=[[], []])
    generators = [torch.Generator(), torch.Generator()]
    stuck, fine = choose(torch.zeros(2, 3), history, SamplingRules(no_repeat_ngram=1), generators)
    assert isinstance(stuck, MtError)
    assert "bar every token" in str(stuck)
    assert fine in (1, 2)
    values = torch.tensor([[1.0, 2.0], [1.0, torch.nan]])
    fine, broken = choose(values, History([[0], [0]], [[], []]), SamplingRules(greedy=True), generators)
    assert fine == 1
    assert isinstance(broken, MtError)
    assert "not finite" in str(broken)
