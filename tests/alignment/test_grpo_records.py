"""What is collected, and what is learned from it: answers of a policy that stands in for a model, scored by functions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from test_trl_objectives import _Pad, save

from mt_core import ComponentError, DataError, UsageError
from mt_core.generation import Generation, GenerationConfig
from mt_core.nn import Batch
from mt_core.rows import MEDIA_MARK, MediaPart
from mt_plugin_alignment import Answer, plugin
from mt_plugin_alignment.objectives.grpo import GrpoObjective
from mt_plugin_alignment.objectives.grpo_config import GrpoConfig
from mt_train import load_weights
from mt_train.data.online import Prompt

Record = dict[str, Any]
COMPONENTS = {each.name: each for each in plugin.mt_objectives()}
PROMPTS = [Prompt({"id": f"row {number}", "prompt": "go"}, [number + 1, 5]) for number in range(3)]


class Policy:
    """Draws tokens from the seed and the number of the prompt. An answer has the log-probability -0.1·token for each token, and
    -0.1·token - 0.5 under the model of step 0."""

    version = 0

    def __init__(self, *, logprobs: bool = True, end: bool = True) -> None:
        self.asked: list[tuple[list[Sequence[int]], GenerationConfig]] = []
        self.views: list[str] = []
        self._logprobs, self._end = logprobs, end

    def generate(
        self, prompts: Sequence[Sequence[int]], config: GenerationConfig, *, weights: str = "live"
    ) -> list[Generation]:
        self.asked.append((list(prompts), config))
        return [self._draw(number, config) for number in range(len(prompts))]

    def _draw(self, number: int, config: GenerationConfig) -> Generation:
        dice = np.random.default_rng([config.seed % 2**32, number])
        length = config.max_new_tokens - 2 + int(dice.integers(2))
        ids = (7,) * length if config.rules.greedy else tuple(dice.integers(6, 40, length).tolist())
        end_id = 2 if self._end else None
        drawn = [*ids, *([] if end_id is None else [end_id])]
        said = tuple(-0.1 * each - 0.3 for each in drawn) if config.logprobs and self._logprobs else ()
        return Generation(" ".join(map(str, ids)), ids, "eos" if self._end else "length", end_id, said)

    def measure(self, samples: Sequence[Any], measure: Any, *, view: str = "live") -> list[dict[str, Any]]:
        self.views.append(view)
        less = 0.5 if view == "reference" else 0.0
        trained = [[i for i, wanted in zip(each.ids, each.trained, strict=True) if wanted] for each in samples]
        return [{"old": np.array([-0.1 * each - less for each in ids])} for ids in trained]

    def once(self, function: Callable[[], Any]) -> Any:
        return json.loads(json.dumps(function()))


class Scores:
    """A reward that is a function of an answer."""

    def __init__(self, function: Callable[[Answer], float | None], weight: float = 1.0) -> None:
        self._function, self.weight = function, weight

    def score(self, answers: Sequence[Answer]) -> list[float | None]:
        return [self._function(each) for each in answers]


def first_token(answer: Answer) -> float:
    return float(answer.ids[0])


def summed(answer: Answer) -> float:
    return float(sum(answer.ids))


def objective(reward: Callable[[Answer], float | None] = first_token, name: str = "grpo", **options: Any) -> Any:
    config = COMPONENTS[name].config(**{"max_new_tokens": 6, **options})
    return GrpoObjective(_Pad(), None, config, {"one": Scores(reward)})  # type: ignore[arg-type]


def collect(made: GrpoObjective, policy: Policy, seed: int = 3) -> list[Record]:
    records = made.collect(PROMPTS, policy, seed=seed, previous=())  # type: ignore[arg-type]
    plain: list[Record] = json.loads(json.dumps(records))
    assert plain == records, "records are plain data"
    return plain


def gained(samples: Sequence[Any]) -> list[list[float]]:
    """Advantages of the tokens of each answer."""
    return [list(each.token_values["advantage"][2:]) for each in samples]


def test_a_prompt_with_media_is_refused_with_the_way_out() -> None:
    asked = {"role": "user", "content": MEDIA_MARK, "media": (MediaPart("image", "a.png"),)}
    with pytest.raises(DataError, match=r"rows:1: the prompt has media, .* \(--data.on-bad-row skip\)"):
        objective().encode({"id": "rows:1", "messages": [asked]})


def test_records_have_for_readers_the_prompt_as_text_and_the_weighted_sum() -> None:
    """Of the answers that are kept, also where their prompts were answered again; no time is in them."""
    made = objective(lambda answer: None if answer.group == 1 else 3.0, resample=1, group=2)
    records = collect(made, Policy())
    assert [each["prompt_text"] for each in records[::2]] == ["1 5", "2 5", "3 5"]
    assert [each["reward"] for each in records] == [3.0, 3.0, None, None, 3.0, 3.0]
    assert not [name for each in records for name in each if "second" in name]
    assert set(made.seconds) == {"write", "score"}
    made = objective(kl=0.1, updates=2)
    collect(made, Policy())
    assert set(made.seconds) == {"write", "score", "measure"}


# ------------------------------------------------------------------------------------------------------------ what is measured


@pytest.mark.parametrize(
    ("options", "views"),
    [
        ({}, []),
        ({"updates": 2}, ["live"]),
        ({"passes": 2}, ["live"]),
        ({"kl": 0.1}, ["reference"]),
        ({"kl": 0.1, "updates": 3}, ["live", "reference"]),
        ({"kl": 0.1, "kl_in": "reward"}, ["live", "reference"]),
        ({"kl_in": "reward"}, []),
        ({"importance": "token"}, ["live"]),
    ],
)
def test_only_what_the_loss_needs_is_measured_and_once(options: Mapping[str, Any], views: list[str]) -> None:
    policy = Policy()
    records = collect(objective(**options), policy)
    assert policy.views == views
    assert all(("old" in each) == ("live" in views) for each in records)
    assert all(("reference" in each) == ("reference" in views) for each in records)
    assert len(policy.asked) == 1


def test_answers_are_drawn_as_the_options_say() -> None:
    policy = Policy()
    collect(objective(temperature=0.7, top_p=0.9, top_k=5), policy)
    rules = policy.asked[0][1].rules
    assert (rules.temperature, rules.top_p, rules.top_k) == (0.7, 0.9, 5)


# --------------------------------------------------------------------------------------------------- prompts answered again


def lucky(answer: Answer) -> float:
    """Whether the last token before the end is even: groups of two often agree."""
    return float(answer.ids[-2] % 2 == 0)


def test_prompts_whose_answers_score_alike_are_answered_again_by_another_seed() -> None:
    once, often = objective(lucky, group=2), objective(lucky, group=2, resample=3)
    first, policy = collect(once, Policy()), Policy()
    last = collect(often, policy)
    alike = [first[2 * n]["rewards"] == first[2 * n + 1]["rewards"] for n in range(3)]
    assert 0 < sum(alike) < 3
    assert len(policy.asked) > 1
    assert policy.asked[1][0] == [PROMPTS[n].ids for n in range(3) if alike[n] for _ in range(2)]
    assert len({config.seed for _, config in policy.asked}) == len(policy.asked)
    for number, (before, after) in enumerate(zip(first, last, strict=True)):
        assert (before == after) == (not alike[number // 2])
        assert after["row_id"] == before["row_id"]
    assert collect(often, Policy()) == last, "the seed decides"


def test_figures_are_of_the_answers_that_were_written_first() -> None:
    """Those that are kept were chosen by their scores: their mean says nothing of the model."""
    once, often = objective(lucky, group=2), objective(lucky, group=2, resample=3)
    _, first = once.learn(collect(once, Policy()))
    _, last = often.learn(collect(often, Policy()))
    assert {name: last[name] for name in ("reward", "reward_one")} == {
        name: first[name] for name in ("reward", "reward_one")
    }
    assert last["groups_alike"] < first["groups_alike"]
    assert last["groups_resampled"] == pytest.approx(first["groups_alike"])


@pytest.mark.parametrize(("name", "options"), [("grpo", {"group": 2, "resample": 1}), ("remax", {})])
def test_the_bound_of_bad_answers_is_that_of_an_iteration(name: str, options: dict[str, Any]) -> None:
    """Answers that are written again count, and greedy ones; the next iteration begins anew."""
    wish = {"name": name, "on_bad_score": "skip", **options}
    written = 12 if name == "grpo" else 6  # 3 prompts: 2 answers to each, twice; or 1 and the greedy one
    made = objective(lambda answer: float("nan"), **wish, max_bad_scores=written)
    for _ in range(2):
        assert {each["reward"] for each in collect(made, Policy())} == {None}
    with pytest.raises(
        ComponentError, match=rf"reward one has failed for {written} answers of an iteration, .* is {written - 1}"
    ):
        collect(objective(lambda answer: float("nan"), **wish, max_bad_scores=written - 1), Policy())


def test_what_stays_alike_is_learned_from_without_an_advantage() -> None:
    made, policy = objective(lambda answer: 1.0, group=2, resample=2), Policy()
    samples, figures = made.learn(collect(made, policy))
    assert len(policy.asked) == 3
    assert {value for each in gained(samples) for value in each} == {0.0}
    assert (figures["groups_alike"], figures["groups_resampled"]) == (1.0, 1.0)


# ------------------------------------------------------------------------------------------------------------------ methods


def test_remax_compares_with_one_greedy_answer_to_each_prompt() -> None:
    made, policy = objective(name="remax"), Policy()
    records = collect(made, policy)
    assert len(records) == 3
    assert "groups_alike" not in made.learn(records)[1], "one answer is like no other"
    assert [config.rules.greedy for _, config in policy.asked] == [False, True]
    assert len(policy.asked[1][0]) == 3
    samples, _ = made.learn(records)
    assert [each[0] for each in gained(samples)] == [record["ids"][0] - 7.0 for record in records]


def test_rloo_takes_the_kl_off_the_reward_before_it_compares() -> None:
    """As TRL does: R - β Σ k1, less the mean of the other answers'. Every token is 0.5 nats from the reference here."""
    made = objective(name="rloo", group=3)
    records = collect(made, Policy())
    samples, _ = made.learn(records)
    rewards = torch.tensor([each["ids"][0] - 0.05 * 0.5 * len(each["ids"]) for each in records]).view(3, 3)
    expected = rewards - (rewards.sum(1, keepdim=True) - rewards) / 2
    assert [each[0] for each in gained(samples)] == pytest.approx(expected.flatten().tolist(), rel=1e-5)
    assert all(len(set(each)) == 1 for each in gained(samples))


def test_reinforce_plus_plus_takes_the_kl_off_what_follows_and_whitens_all_tokens() -> None:
    made = objective(name="reinforce-plus-plus", kl=0.2)
    records = collect(made, Policy())
    samples, _ = made.learn(records)
    returned = [
        [each["ids"][0] - 0.2 * 0.5 * (len(each["ids"]) - place) for place in range(len(each["ids"]))]
        for each in records
    ]
    flat = torch.tensor([value for each in returned for value in each], dtype=torch.float64)
    expected = (flat - flat.mean()) / (flat.var() + 1e-8).sqrt()
    found = [value for each in gained(samples) for value in each]
    assert found == pytest.approx(expected.tolist(), rel=1e-9)


def test_its_baseline_variant_compares_within_the_group_first() -> None:
    made = objective(name="reinforce-plus-plus", group=4, baseline="group", kl=0.0)
    samples, _ = made.learn(collect(made, Policy()))
    found = np.array([value for each in gained(samples) for value in each])
    assert (found.mean(), found.var(ddof=1)) == pytest.approx((0.0, 1.0), abs=1e-6)


def test_gdpo_compares_each_reward_and_says_alike_of_none_that_one_tells_apart() -> None:
    rewards = {"one": Scores(summed), "other": Scores(lambda each: -summed(each))}
    config = COMPONENTS["gdpo"].config(group=2, max_new_tokens=6)
    made = GrpoObjective(_Pad(), None, config, rewards)  # type: ignore[arg-type]
    _, figures = made.learn(collect(made, Policy()))
    assert figures["groups_alike"] == 0.0
    plain = GrpoObjective(_Pad(), None, GrpoConfig(group=2, max_new_tokens=6), rewards)  # type: ignore[arg-type]
    assert plain.learn(collect(plain, Policy()))[1]["groups_alike"] == 1.0


def test_an_answer_without_an_end_may_cost_something() -> None:
    made, policy = objective(lambda answer: 1.0, missing_eos_penalty=0.5, baseline="none", scale="none"), Policy()
    assert gained(made.learn(collect(made, policy))[0])[0][0] == 1.0
    samples, figures = made.learn(collect(made, Policy(end=False)))
    assert gained(samples)[0][0] == 0.5
    assert figures["reward"] == 1.0, "the record has what rewards say"


def test_an_answer_without_an_end_sets_a_group_apart_that_scores_the_same() -> None:
    """Its penalty is an advantage, so the group is not answered again, and no alarm counts it as alike."""

    class Cuts(Policy):
        def _draw(self, number: int, config: GenerationConfig) -> Generation:
            self._end = number % 2 == 0
            return super()._draw(number, config)

    for penalty, asked, alike in ((0.0, 3, 1.0), (0.5, 1, 0.0)):
        made, policy = objective(lambda answer: 1.0, group=2, resample=2, missing_eos_penalty=penalty), Cuts()
        samples, figures = made.learn(collect(made, policy))
        assert (len(policy.asked), figures["groups_alike"]) == (asked, alike)
        assert {value > 0 for each in gained(samples[::2]) for value in each} == {penalty > 0}


def test_a_correction_for_the_sampler_weighs_tokens_and_needs_its_numbers() -> None:
    made = objective(importance="token", importance_high=1.2)
    samples, figures = made.learn(collect(made, Policy()))
    assert figures["sampler_ratio"] == pytest.approx(np.exp(0.3))
    assert figures["sampler_ratio_most"] == pytest.approx(np.exp(0.3))
    assert list(samples[0].token_values["importance"])[2:] == pytest.approx([1.2] * (len(samples[0].ids) - 2))
    dropped, _ = objective(importance="icepop", importance_high=1.2).learn(collect(made, Policy()))
    assert set(dropped[0].token_values["importance"]) == {0.0}
    with pytest.raises(
        ComponentError, match=r"the sampler gives 0 log-probabilities for an answer of . tokens to row 0"
    ):
        collect(made, Policy(logprobs=False))


def test_no_figure_but_those_of_rewards_has_that_word() -> None:
    made = objective(importance="token", kl=0.1, resample=1)
    _, figures = made.learn(collect(made, Policy()))
    assert {name for name in figures if "reward" in name} == {"reward", "reward_one"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"group": 4}, "the answers are 8 to each prompt, and objective.group is 4; set 8"),
        (
            {"updates": 2},
            "the answers have no 'old', .* which objective.updates, passes, importance, or kl in rewards needs",
        ),
        ({"kl": 0.1}, "the answers have no 'reference', .* which objective.kl needs"),
        ({"baseline": "greedy", "scale": "none"}, "the answers have no 'greedy'"),
    ],
)
def test_answers_of_another_run_that_lack_what_is_needed_are_refused(options: Mapping[str, Any], says: str) -> None:
    records = collect(objective(), Policy())
    with pytest.raises(UsageError, match=says):
        objective(**options).learn(records)
    with pytest.raises(UsageError, match="the answers are not 8 to each prompt: some are missing"):
        objective().learn(records[:-1])
    with pytest.raises(UsageError, match="no scores of reward other; name the rewards that they were collected with"):
        GrpoObjective(_Pad(), None, GrpoConfig(), {"other": Scores(summed)}).learn(records)  # type: ignore[arg-type]
    assert objective(clip_high=0.3, mean="answer", scale="none").learn(records)[0]


# ---------------------------------------------------------------------------------------------------------------- the loss


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    save(folder, 1)
    return load_weights("llama", folder).model


class Measured(Policy):
    """Measures with a model, a row each."""

    def __init__(self, model: Any, made: GrpoObjective) -> None:
        super().__init__()
        self._model, self._made = model, made

    def measure(self, samples: Sequence[Any], measure: Any, *, view: str = "live") -> list[dict[str, Any]]:
        self.views.append(view)
        found = []
        for sample in samples:
            batch = self._made.collate([[sample]], length=16).with_index()
            with torch.no_grad():
                values = measure(self._model(batch), self._model.head, batch)
            found.append({name: each.double().numpy() for name, each in values.items()})
        return found


def test_the_first_of_several_steps_has_ratios_of_1_at_any_temperature(model: Any) -> None:
    made = objective(temperature=0.6, updates=2, kl=0.3, clip_low=0.3)
    policy = Measured(model, made)
    samples, _ = made.learn(collect(made, policy))
    figures = step(made, model, [[each] for each in samples])[1]
    assert figures["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert (figures["kl"], figures["kl_loss"]) == pytest.approx((0.0, 0.0), abs=1e-5)
    assert (figures["clipped_low"], figures["clipped_high"], figures["ratio_far"]) == (0.0, 0.0, 0.0)


LOSSES = ["clip", "sequence", "whole", "cispo", "soft"]
MEANS = ["token", "answer", "constant", "prompt"]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_the_same_however_it_is_divided(model: Any, loss: str, mean: str) -> None:
    """One row of all answers, a row each, micro-batches, and rows that two ranks share; an empty batch adds nothing."""
    made = objective(loss=loss, mean=mean, group=2, updates=2, kl=0.1, truncated="mask")
    samples, _ = made.learn(collect(made, Policy()))
    whole, figures = step(made, model, [[each] for each in samples])
    packed, _ = step(made, model, [samples])
    parts = [step(made, model, [[each]], sums=True) for each in (*samples, None)]
    divided = torch.stack([each[0] for each in parts]).sum() / sum(each[1] for each in parts)
    assert packed.item() == pytest.approx(whole.item(), rel=1e-5)
    assert divided.item() == pytest.approx(whole.item(), rel=1e-5)
    assert figures["kl"] > 0


def step(made: GrpoObjective, model: Any, rows: Sequence[Sequence[Any]], *, sums: bool = False) -> tuple[Tensor, Any]:
    """The loss of a batch and its figures; or its sum and its count."""
    rows = [[each for each in row if each is not None] for row in rows]
    length = max([sum(len(each.ids) for each in row) for row in rows]) + 2
    batch = made.collate(rows, length=length).with_index()
    found = made.loss(model(batch), model.head, batch)
    count = made.count(batch)
    assert float(found.token_count) == count
    if sums:
        return found.loss_sum.detach(), count
    figures = {name: float(total) / float(number) for name, (total, number) in found.metrics.items()}
    return found.loss_sum.detach() / count, figures


def test_ranks_that_share_rows_count_answers_once(model: Any) -> None:
    made = objective(loss="sequence", mean="answer", group=2, updates=2)
    samples, _ = made.learn(collect(made, Policy()))
    batch = made.collate([samples], length=64)
    assert made.count(batch.with_index()) == len(samples)
    counts = [made.count(batch.cut(part, 2).with_index()) for part in range(2)]
    assert counts == [len(samples), 0.0]


@pytest.mark.parametrize(("mean", "count"), [("token", 13.0), ("answer", 3.0), ("constant", 24.0), ("prompt", 2.0)])
def test_the_denominator_is_what_the_mean_says(mean: str, count: float) -> None:
    """Four answers of 3, 4, 5 and 6 tokens to two prompts, the third of which is cut and masked."""
    made = objective(mean=mean, group=2, max_new_tokens=8, truncated="mask")
    lengths, ends = (3, 4, 5, 6), ("eos", "eos", "length", "eos")
    records = [
        {
            "row_id": "row",
            "group": place // 2,
            "prompt": [1, 2],
            "ids": [7] * length,
            "finish": end,
            "rewards": {"one": float(length)},
        }
        for place, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    samples, _ = made.learn(records)
    assert [len(each.ids) - 2 for each in samples] == [3, 4, 6]
    batch: Batch = made.collate([[each] for each in samples], length=12).with_index()
    assert made.count(batch) == pytest.approx(count)
    weight_n = batch.documents["weight"][batch.document_n()]
    assert float(weight_n.sum()) == pytest.approx(count if mean != "constant" else 13.0), "a mean of ones is 1"


# ----------------------------------------------------------------------------------------------------------------- options

REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "a group of one": ({"group": 1}, "baseline group compares the answers to a prompt, and group is 1; set group to 2"),
    "deviations of no group": (
        {"baseline": "greedy"},
        "scale group divides what is compared within a group, and baseline",
    ),
    "nothing to repeat": (
        {"baseline": "none", "scale": "none", "resample": 1},
        "baseline none compares none; leave it out",
    ),
    "two whitenings": (
        {"normalise": "each", "scale": "tokens"},
        "normalise each whitens over answers, and scale tokens",
    ),
    "no sum": ({"normalise": "each", "kl": 0.1, "kl_in": "reward"}, "normalise each has no sum to take anything off"),
    "k3 in the reward": ({"kl_in": "reward", "kl_estimator": "k3"}, "kl_estimator k3 goes with kl_in loss"),
    "bounds without an effect": ({"loss": "soft", "clip_high": 0.4}, "clip_high 0.4 does nothing where loss is soft"),
    "temperatures without an effect": ({"soft_negative": 2.0}, "soft_negative 2.0 does nothing where loss is clip"),
    "dual weights": ({"loss": "cispo", "dual_clip": 3.0}, "dual_clip bounds a clipped loss, and loss is cispo"),
    "a cut distribution": (
        {"importance": "token", "top_p": 0.9},
        "log-probabilities of a sampler, which are over all tokens",
    ),
    "another temperature": (
        {"importance": "icepop", "temperature": 0.7},
        "leave temperature, top_p and top_k at their",
    ),
    "out of bounds": ({"clip_low": 1.5}, "less than or equal to 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_do_not_go_together_are_refused_with_the_way_out(case: str) -> None:
    options, says = REFUSED[case]
    with pytest.raises(ValidationError, match=says):
        GrpoConfig(**options)


def test_a_preset_is_grpo_with_other_defaults_and_the_same_bounds() -> None:
    for name in ("dr-grpo", "dapo", "rloo", "reinforce-plus-plus", "gspo", "cispo", "sapo", "remax", "gdpo"):
        config = COMPONENTS[name].config
        assert issubclass(config, GrpoConfig)
        assert config().model_dump() != GrpoConfig().model_dump()
        for key, own in GrpoConfig.model_fields.items():
            assert replace_default(config.model_fields[key]) == replace_default(own), (name, key)
        with pytest.raises(ValidationError):
            config(clip_high=0)
    assert COMPONENTS["gspo"].config().clip_high == 4e-4
    assert COMPONENTS["gspo"].config(clip_high=0.1).clip_high == 0.1


def replace_default(field: Any) -> tuple[Any, ...]:
    """What a field is but its default."""
    return field.annotation, field.description, tuple(map(repr, field.metadata))


@pytest.mark.parametrize("name", ["grpo", "gspo", "reinforce-plus-plus"])
def test_without_a_reward_a_method_says_so_by_its_own_name(name: str) -> None:
    component = COMPONENTS[name]
    with pytest.raises(UsageError, match=f"^{name} learns from rewards: name one or more with --rewards NAME"):
        component.build(component.config(), tokenizer=_Pad(), template=None, rewards={})
