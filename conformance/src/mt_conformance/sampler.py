"""Conformance of a sampler: an answer to each prompt, of the weights that there are, as likely as it says."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mt_conformance import tiny, trainer
from mt_conformance.base import BasePluginConformance
from mt_conformance.evaluation import generators
from mt_conformance.host import hermetic_host
from mt_conformance.layouts import small_run
from mt_conformance.weights import fill_weights
from mt_core.evaluation import Continuation, Score, TokenValues
from mt_core.generation import Generation, GenerationConfig, SamplingRules
from mt_core.nn import TokenObjective, token_logprobs
from mt_core.plugins.host import PluginHost
from mt_core.rows import Row, Sample

FINISHES = ("eos", "stop", "length", "context")
TEXTS = ("a", "The sea is", "12 + 30 = ", "a", "what is wide and blue, and never still? ")
"""Prompts, of which two are the same."""


class Completion(Protocol):
    """An answer as the kit reads it: that of mt-plugin-alignment, which the kit does not import."""

    text: str
    ids: Sequence[int]
    finish: str
    logprobs: Sequence[float] | None


class Sampler(Protocol):
    """A sampler as the kit calls it."""

    full_support: bool

    def sample(
        self, policy: KitPolicy, prompts: Sequence[Sequence[int]], config: GenerationConfig
    ) -> Sequence[Completion]:
        """Return an answer to each prompt."""
        ...


class KitPolicy:
    """A model as a sampler sees that of a run (``mt_train.Policy``), and a record of how its weights were walked."""

    def __init__(self, loaded: trainer.LoadedModel) -> None:
        self._loaded = loaded
        self._subject = trainer.LoadedSubject(loaded, loaded.template, _encode_nothing, batch_size=2)  # type: ignore[arg-type]
        self.tokenizer, self.template = loaded.tokenizer, loaded.template
        self.max_seq_len, self.eos_ids, self.texts = loaded.max_seq_len, loaded.eos_ids, True
        self.version = 1
        self.unfinished = 0
        """Walks over the weights that were begun and not ended."""

    def train(self) -> None:
        """Move every weight, as a step of training does."""
        fill_weights(self._loaded.model, seed=self.version, wide=True)
        self.version += 1

    def generate(
        self, prompts: Sequence[Sequence[int]], config: GenerationConfig, *, weights: str = "live"
    ) -> list[Generation]:
        """See ``mt_train.Policy``."""
        return self._subject.generate(prompts, config)

    def score(self, requests: Sequence[Continuation]) -> list[Score]:
        """See ``Subject``."""
        return self._subject.score(requests)

    def token_values(self, samples: Sequence[Sample], *, top: int = 1) -> list[TokenValues]:
        """See ``Subject``."""
        return self._subject.token_values(samples, top=top)

    def encode(self, rows: Iterable[Row]) -> list[Sample]:
        """See ``Subject``."""
        return self._subject.encode(rows)

    @torch.no_grad()
    def measure(
        self, samples: Sequence[Sample], measure: Callable[..., Mapping[str, Tensor]], *, view: str = "live"
    ) -> list[Mapping[str, Any]]:
        """See ``mt_train.Policy``."""
        model, objective = self._loaded.model, TokenObjective()
        batches = [objective.collate([[each]], length=len(each.ids)).with_index() for each in samples]
        found = [measure(model(batch), model.head, batch) for batch in batches]
        return [{name: value.double().numpy() for name, value in each.items()} for each in found]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See ``mt_train.Policy``."""
        self.unfinished += 1
        for name, parameter in self._loaded.model.named_parameters():
            yield name, parameter.detach()
        self.unfinished -= 1

    def once(self, function: Callable[[], Any]) -> Any:
        """See ``mt_train.Policy``."""
        found = function()
        try:
            return json.loads(json.dumps(found))
        except (TypeError, ValueError) as error:
            raise AssertionError(
                f"what it does once on one rank gives {found!r}, which is no JSON ({error}), so the other ranks cannot have it"
            ) from error


class BaseSamplerConformance(BasePluginConformance):
    """Checks of a sampler. The policy is the kit's tiny model; start a service that the sampler needs in ``options_in``.

    ``loaded`` may give another model, such as one whose files the service reads.
    """

    kind = "sampler"
    repeats: bool = True
    """Whether the same prompts and seed give the same answers."""
    tolerance: float = 1e-3
    """How far log-probabilities may be from those of the policy (nats, mean over the tokens of all answers)."""

    def loaded(self, folder: Path) -> trainer.LoadedModel:
        """Return the model that is trained, in fp32."""
        parts = trainer.Parts.of(trainer.resolve(small_run(), hermetic_host(tiny)))
        model, tokenizer = fill_weights(parts.model(), wide=True).eval(), parts.tokenizer
        return trainer.LoadedModel(model, tokenizer, 256, () if tokenizer.eos_id is None else (tokenizer.eos_id,))

    def sampler(self, host: PluginHost, folder: Path) -> Sampler:
        """Build the sampler as an objective does."""
        built: Sampler = self.part(host, folder).build()
        return built

    def prompts(self, policy: KitPolicy) -> list[list[int]]:
        """Return the ids of the prompts."""
        return [policy.tokenizer.encode(text) for text in TEXTS]

    def answers(
        self, sampler: Sampler, policy: KitPolicy, prompts: Sequence[Sequence[int]], config: GenerationConfig
    ) -> list[Completion]:
        """Ask the sampler. Raises ``AssertionError`` for whatever is raised, and for another number of answers."""
        try:
            found = list(sampler.sample(policy, prompts, config))
        except Exception as error:
            raise AssertionError(f"{len(prompts)} prompts: sample() raised {type(error).__name__}: {error}") from error
        assert len(found) == len(prompts), (
            f"{len(prompts)} prompts: sample() gives {len(found)} answers; give one to each, in their order"
        )
        return found

    # ------------------------------------------------------------------------------------------------------ checks

    def test_each_prompt_has_an_answer_of_tokens(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Give ids of tokens, drawn and greedy, for no prompts as for several: no more than were asked for, with the end token."""
        trainer.require()
        sampler, policy = self.sampler(mt_host, tmp_path), KitPolicy(self.loaded(tmp_path))
        assert isinstance(sampler.full_support, bool), (
            f"its full_support is {sampler.full_support!r}; say whether its logprobs are over all tokens (True or False)"
        )
        assert self.answers(sampler, policy, [], GenerationConfig()) == []
        for rules in (SamplingRules(), SamplingRules(greedy=True)):
            config = GenerationConfig(rules=rules, max_new_tokens=12, seed=3)
            for answer in self.answers(sampler, policy, self.prompts(policy), config):
                ids = list(answer.ids)
                ended = bool(ids) and ids[-1] in policy.eos_ids
                assert ids, f"the answer {answer.text!r} has no tokens; one that ends at once has the end token"
                assert all(type(each) is int and each >= 0 for each in ids), (
                    f"an answer has the ids {ids}; they are written as JSON, so make each an int, 0 or above"
                )
                assert len(ids) - ended <= 12, f"an answer has {len(ids)} tokens, and 12 were asked for at most"
                assert answer.finish in FINISHES, (
                    f"an answer ended by {answer.finish!r}; say one of {', '.join(FINISHES)}"
                )
                assert ended == (answer.finish == "eos"), (
                    f"an answer ended by {answer.finish!r}, and its last token {ids[-1]} is {'' if ended else 'no '}end token; with"
                    " finish eos, and with no other, the end token is the last of its ids"
                )
                content = ids[:-1] if ended else ids
                assert answer.text == policy.tokenizer.decode(content), (
                    f"the text of an answer is {answer.text!r}, and that of its tokens {policy.tokenizer.decode(content)!r}"
                )

    def test_draws_follow_the_seed(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Another seed draws other answers, equal prompts have answers of their own, and one seed gives the same ones, if ``repeats``."""
        trainer.require()
        sampler, policy = self.sampler(mt_host, tmp_path), KitPolicy(self.loaded(tmp_path))
        prompts = [*self.prompts(policy), *self.prompts(policy)]
        first, again, other = (
            [
                list(each.ids)
                for each in self.answers(sampler, policy, prompts, GenerationConfig(max_new_tokens=24, seed=seed))
            ]
            for seed in (3, 3, 4)
        )
        assert not self.repeats or first == again, (
            "asked twice with one seed, it gives other answers; draw by config.seed alone, so that a resumed run goes on as it was. For a"
            " service that cannot, set repeats = False in this test"
        )
        assert first != other, (
            "with the seeds 3 and 4 all answers are the same; a run that never draws others learns nothing: use config.seed"
        )
        half = len(TEXTS)
        assert first[:half] != first[half:], (
            "prompts that occur twice have the same answer each time; each one is drawn by itself, or all of a group are alike"
        )

    def test_answers_follow_the_weights(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Greedy answers are those of the policy, also after a step of training; its weights are walked to the end, if at all."""
        trainer.require()
        sampler, policy = self.sampler(mt_host, tmp_path), KitPolicy(self.loaded(tmp_path))
        prompts, config = self.prompts(policy), GenerationConfig(rules=SamplingRules(greedy=True), max_new_tokens=8)
        before: list[list[int]] = []
        for when in ("at first", "after a step of training"):
            expected = [
                [*each.ids, *([] if each.end_id is None else [each.end_id])]
                for each in policy.generate(prompts, config)
            ]
            assert expected != before, "a step of the kit's changes what the policy writes"
            found = [list(each.ids) for each in self.answers(sampler, policy, prompts, config)]
            if found != expected:
                place = _first_difference(found, expected)
                raise AssertionError(
                    f"{when} the likeliest answer to {TEXTS[place]!r} is {found[place]}, and the policy's {expected[place]}."
                    " Look at policy.version, and take the new weights where it is another"
                )
            assert not policy.unfinished, (
                f"{when} policy.weights() was begun and not ended; it is collective, so walk it to the end on every rank"
            )
            before = expected
            policy.train()

    def test_log_probabilities_are_those_of_the_policy(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Log-probabilities, where there are any, are one for each token, at the sampler's temperature, over all tokens."""
        trainer.require()
        sampler, policy = self.sampler(mt_host, tmp_path), KitPolicy(self.loaded(tmp_path))
        prompts = self.prompts(policy)
        for temperature in (1.0, 0.5):
            rules = SamplingRules(temperature=temperature)
            config = GenerationConfig(rules=rules, max_new_tokens=8, seed=5, logprobs=True)
            distances: list[float] = []
            for prompt, answer in zip(prompts, self.answers(sampler, policy, prompts, config), strict=True):
                if answer.logprobs is None:
                    continue
                found = [float(each) for each in answer.logprobs]
                assert len(found) == len(answer.ids), (
                    f"an answer of {len(answer.ids)} tokens has {len(found)} logprobs; give one for each, the end token too"
                )
                expected = _logprobs(policy, prompt, answer.ids, temperature)
                distances += [abs(one - other) for one, other in zip(found, expected, strict=True)]
            apart = math.fsum(distances) / max(len(distances), 1)
            assert not sampler.full_support or apart <= self.tolerance, (
                f"at temperature {temperature:g} its logprobs are {apart:.3g} nats a token from those of the policy over all tokens"
                f" (allowed: {self.tolerance:g}). Give those after the temperature, or full_support = False"
            )

    def test_it_changes_nothing(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Prompts and the random generators of torch, numpy and Python are unchanged."""
        trainer.require()
        sampler, policy = self.sampler(mt_host, tmp_path), KitPolicy(self.loaded(tmp_path))
        prompts = self.prompts(policy)
        kept, before = copy.deepcopy(prompts), generators()
        self.answers(sampler, policy, prompts, GenerationConfig(max_new_tokens=4))
        assert prompts == kept, "sample() changed a prompt; copy what you change"
        moved = [name for name, state in generators().items() if state != before[name]]
        assert not moved, (
            f"after it the random generator of {' and '.join(moved)} is another. Draw from one of your own, by config.seed"
        )


def _logprobs(policy: KitPolicy, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
    """Return log-probabilities of an answer's tokens under the policy (nats)."""
    trained = [False] * len(prompt) + [True] * len(ids)

    def measure(hidden: Tensor, head: Any, batch: Any) -> Mapping[str, Tensor]:
        return {"logprobs": token_logprobs(head, *batch.select_trained(hidden), temperature=temperature)[0]}

    (found,) = policy.measure([Sample([*prompt, *ids], trained, "answer")], measure)
    return [float(each) for each in found["logprobs"]]


def _first_difference(found: Sequence[object], expected: Sequence[object]) -> int:
    return next(place for place, each in enumerate(found) if each != expected[place])


def _encode_nothing(rows: Iterable[Row]) -> list[Sample]:
    """Return no sample: a sampler encodes no rows."""
    return []
