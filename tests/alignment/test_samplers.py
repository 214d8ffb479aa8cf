"""Samplers: who writes the answers, and what is checked of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mt_conformance import BaseSamplerConformance
from mt_core import ComponentError, ConfigError, UsageError
from mt_core.generation import Generation, GenerationConfig, SamplingRules
from mt_plugin_alignment import Completion, plugin
from mt_plugin_alignment.objectives.group_writer import GroupWriter
from mt_plugin_alignment.objectives.grpo_config import GrpoConfig
from mt_plugin_alignment.samplers.answers import refuse_partial_support, write_answers
from mt_plugin_alignment.samplers.own import OwnConfig, OwnSampler, build_copy
from mt_train import check_config

TOKENIZER: Any = None
TEMPLATE: Any = None
"""Nobody asks these: nothing is written."""


class TestConformance(BaseSamplerConformance):
    plugin = plugin

    @pytest.fixture(
        autouse=True,
        params=[("own", {}), ("own", {"weights": "live"}), ("own", {"weights": "copy"}), ("copy", {})],
        ids=str,
    )
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name, self.options = request.param


class Policy:
    """Writes one token to each prompt, and keeps which weights were asked for."""

    eos_ids = (7,)
    asked: str

    def generate(self, prompts: Sequence[Any], config: GenerationConfig, *, weights: str = "live") -> list[Generation]:
        self.asked = weights
        return [Generation("a", (3,), "eos", 7, (-0.5, -0.25)) for _ in prompts]


ANY_POLICY: Any = Policy()
COMPLETION = Completion("a", [3, 7], "eos", [-0.5, -0.25])


@pytest.mark.parametrize(
    ("sampler", "weights"),
    [
        (None, "auto"),
        (OwnSampler(OwnConfig()), "auto"),
        (OwnSampler(OwnConfig(weights="live")), "live"),
        (build_copy(OwnConfig()), "copy"),
    ],
)
def test_the_policy_writes_with_the_weights_that_the_sampler_names(sampler: Any, weights: str) -> None:
    found = write_answers(sampler, ANY_POLICY, [[1], [2]], GenerationConfig(logprobs=True))
    assert ANY_POLICY.asked == weights
    assert [(each.text, list(each.ids), each.finish) for each in found] == [("a", [3, 7], "eos")] * 2


@pytest.mark.parametrize(
    ("rules", "known"),
    [
        (SamplingRules(), True),
        (SamplingRules(temperature=0.9), False),
        (SamplingRules(greedy=True), False),
    ],
)
def test_log_probabilities_are_given_where_they_are_those_of_the_sampler(rules: SamplingRules, known: bool) -> None:
    """The decoder has those of the model itself, before the temperature."""
    (found,) = write_answers(None, ANY_POLICY, [[1]], GenerationConfig(rules=rules, logprobs=True))
    assert found.logprobs == ((-0.5, -0.25) if known else None)


class Given:
    """Gives what it was made of."""

    full_support = True

    def __init__(self, *answers: Any) -> None:
        self._answers = answers

    def sample(self, policy: Any, prompts: Sequence[Any], config: GenerationConfig) -> list[Any]:
        return [each for each in self._answers if not each.logprobs or each.logprobs[0] < 1]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, r"Given failed: AttributeError: .*has no attribute 'logprobs' \(.*test_samplers\.py, line \d+; --debug"),
        (replace(COMPLETION, logprobs=[2.0, 2.0]), "Given gives 0 answers to 1 prompts; give one to each"),
        (replace(COMPLETION, ids=[]), "prompt 0 an answer without tokens"),
        (replace(COMPLETION, ids=[3, -1]), "prompt 0 an answer with -1 among its ids"),
        (replace(COMPLETION, ids=[3, 3, 3, 7]), "prompt 0 an answer of 3 tokens, and at most 2 were asked for"),
        (replace(COMPLETION, finish="done"), "that ended by 'done'; say one of eos, stop, length, context"),
        (
            replace(COMPLETION, logprobs=[-1.0]),
            r"of 2 tokens with logprobs \[-1.0\] \(1\); give each token a finite one",
        ),
        (replace(COMPLETION, logprobs=[-1.0, float("nan")]), r"logprobs \[-1.0, nan\] \(2\)"),
    ],
)
def test_an_answer_that_is_none_is_an_error_that_names_the_sampler(answer: Any, says: str) -> None:
    with pytest.raises(ComponentError, match=says):
        write_answers(Given(answer), ANY_POLICY, [[1]], GenerationConfig(max_new_tokens=2))


def test_an_answer_may_be_as_long_as_it_was_asked_for_and_end() -> None:
    config = GenerationConfig(max_new_tokens=1)
    assert write_answers(Given(COMPLETION), ANY_POLICY, [[1]], config) == [COMPLETION]


@pytest.mark.parametrize(
    ("rules", "full", "says"),
    [
        (SamplingRules(), True, ""),
        (SamplingRules(top_p=1.0, min_p=0.0), True, ""),
        (SamplingRules(top_p=0.9, top_k=5), True, "top_k=5, top_p=0.9 leaves out unlikely tokens"),
        (SamplingRules(min_p=0.1), True, "min_p=0.1 leaves out"),
        (SamplingRules(greedy=True), True, "the likeliest token is taken, and nothing drawn"),
        (SamplingRules(), False, "Given does not draw from all tokens (full_support is False)"),
    ],
)
def test_importance_is_refused_where_not_all_tokens_could_be_drawn(rules: SamplingRules, full: bool, says: str) -> None:
    sampler = Given()
    sampler.full_support = full
    if not says:
        refuse_partial_support(sampler, rules)
        refuse_partial_support(None, rules)
        return
    with pytest.raises(UsageError, match=re.escape(says)):
        refuse_partial_support(sampler, rules)


def test_an_objective_that_corrects_for_importance_refuses_a_sampler_without_all_tokens() -> None:
    chooses: Any = Given()
    chooses.full_support = False
    GroupWriter(GrpoConfig(importance="token"), {}, Given(), TOKENIZER, TEMPLATE)
    GroupWriter(GrpoConfig(), {}, chooses, TOKENIZER, TEMPLATE)
    with pytest.raises(UsageError, match="importance correction divides by how likely the sampler's tokens were"):
        GroupWriter(GrpoConfig(importance="token"), {}, chooses, TOKENIZER, TEMPLATE)


@pytest.mark.parametrize("layout", ["pipeline", "sequence"])
def test_live_weights_are_refused_on_paper_where_a_rank_cannot_write_with_them(layout: str) -> None:
    run = {
        "model": {"name": "llama", "n_layers": 2},
        "objective": "grpo",
        "rewards": [{"name": "length", "most": 4, "ramp": 2}],
    }
    run |= {"dataset": {"name": "jsonl", "path": "rows.jsonl"}, "parallel": {layout: 2}}
    with pytest.raises(
        ConfigError, match=rf"own cannot do {layout}: the weights that are trained .*--sampler\.weights copy"
    ):
        check_config({**run, "sampler": {"name": "own", "weights": "live"}}, processes=2)
    for sampler in ({"name": "own"}, {"name": "own", "weights": "copy"}, {"name": "copy"}):
        check_config({**run, "sampler": sampler}, processes=2)
    with pytest.raises(ConfigError, match=r"for instance --sampler NAME; installed: ") as error:
        check_config({**run, "sampler": {"weights": "live"}})
    assert "FOLDER" not in str(error.value)
