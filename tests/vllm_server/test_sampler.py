"""The sampler beside a server that speaks vLLM's protocol: answers, weights that follow, and every fault by its name."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from stand_in import MODEL, StandIn, serve

from mt_conformance import BaseSamplerConformance
from mt_conformance.sampler import KitPolicy
from mt_core import UsageError
from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.weights import open_folder
from mt_plugin_vllm import plugin, sampler
from mt_plugin_vllm.config import VllmConfig
from mt_plugin_vllm.errors import (
    OtherWeightsError,
    SamplerError,
    ServerAnswerError,
    ServerLateError,
    ServerUnreachableError,
)
from mt_plugin_vllm.sampler import VllmSampler
from mt_train import LoadedModel

PROMPTS = [[5, 9, 3], [5, 9, 3], [8, 8, 7, 20], [5, 9, 3]]
GREEDY = GenerationConfig(rules=SamplingRules(greedy=True), max_new_tokens=6)


class TestConformance(BaseSamplerConformance):
    plugin, name = plugin, "vllm"

    @pytest.fixture(autouse=True)
    def _served(self, tmp_path: Path) -> Iterator[None]:
        with serve(StandIn(self.loaded(tmp_path))) as url:
            self.options = {"url": url, "folder": str(tmp_path / "weights")}
            yield


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return BaseSamplerConformance().loaded(tmp_path)


@pytest.fixture
def engine(model: LoadedModel) -> StandIn:
    """A server with weights of its own."""
    return StandIn(deepcopy(model))


@pytest.fixture
def make(engine: StandIn, tmp_path: Path) -> Iterator[Callable[..., VllmSampler]]:
    with serve(engine) as url:
        yield lambda **more: VllmSampler(VllmConfig(**{"url": url, "folder": tmp_path / "weights", **more}))


def requests(engine: StandIn, path: str) -> list[Any]:
    return [content for each, content in engine.said if each == path]


# ---------------------------------------------------------------------------------------------------------------- asking


def test_prompts_that_are_the_same_are_asked_at_once_by_their_ids(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel
) -> None:
    config = GenerationConfig(rules=SamplingRules(temperature=0.8), max_new_tokens=5, seed=11, logprobs=True)
    answers = make().sample(KitPolicy(model), PROMPTS, config)
    asked = [each for each in requests(engine, "/v1/completions") if "prompt_logprobs" not in each]
    assert sorted((each["prompt"], each["n"]) for each in asked) == [([5, 9, 3], 1), ([5, 9, 3], 2), ([8, 8, 7, 20], 1)]
    assert all(each["model"] == MODEL for each in asked)
    assert all((each["top_k"], each["top_p"], each["repetition_penalty"]) == (-1, 1.0, 1.0) for each in asked), (
        "what is not said is taken from the served model's generation_config.json"
    )
    assert len({each["seed"] for each in asked}) == 3
    assert all(each.logprobs is not None and len(each.logprobs) == len(each.ids) for each in answers)
    assert "text that nobody" not in answers[0].text


def test_an_answer_ends_where_a_turn_of_the_template_does(make: Callable[..., VllmSampler], model: LoadedModel) -> None:
    """Also where that is a text of several tokens, as in the trainer: ids and text are those that it writes itself."""
    policy = KitPolicy(model)
    config = replace(GREEDY, max_new_tokens=12)
    whole = policy.generate(PROMPTS, config)[0].text
    stop = whole[2:4]
    policy.template = SimpleNamespace(stop_text=stop)
    found, wanted = make().sample(policy, PROMPTS, config), policy.generate(PROMPTS, replace(config, stop=(stop,)))
    assert [(each.text, tuple(each.ids), each.finish) for each in found] == [
        (each.text, tuple(each.ids), each.finish) for each in wanted
    ]
    assert (found[0].finish, found[0].text) == ("stop", whole.partition(stop)[0])


def test_each_answer_may_have_a_bound_of_its_own(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel
) -> None:
    """As the turns of answers that have called tools: a long prompt has room for less than a short one, and the server for no more."""
    engine.context = 9
    rooms = [6, 6, 5, 6]
    found = make().sample_within(KitPolicy(model), PROMPTS, GREEDY, rooms)
    asked = [each for each in requests(engine, "/v1/completions") if "prompt_logprobs" not in each]
    assert sorted((len(each["prompt"]), each["max_tokens"]) for each in asked) == [(3, 6), (3, 6), (4, 5)]
    assert [len(each.ids) for each in found] == rooms
    with pytest.raises(ServerAnswerError, match="maximum context length is 9"):
        make().sample(KitPolicy(model), PROMPTS, GREEDY)


def test_the_same_seed_asks_the_same_and_another_another(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel
) -> None:
    policy = KitPolicy(model)
    found = [
        [list(each.ids) for each in make().sample(policy, PROMPTS, GenerationConfig(max_new_tokens=6, seed=seed))]
        for seed in (4, 4, -5)
    ]
    assert found[0] == found[1] != found[2]
    assert found[0][0] != found[0][1], "answers to one prompt are drawn apart"


def test_nothing_is_asked_for_no_prompts(make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel) -> None:
    assert make().sample(KitPolicy(model), [], GREEDY) == []
    assert engine.said == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (GenerationConfig(rules=SamplingRules(typical_p=0.9)), "sampler vllm has no typical_p; leave it out"),
        (GenerationConfig(rules=SamplingRules(num_beams=2)), "no num_beams"),
        (GenerationConfig(stop=("x",)), "no stop"),
        (GenerationConfig(choices=("x",)), "no choices"),
    ],
)
def test_rules_that_a_server_has_otherwise_are_refused(
    make: Callable[..., VllmSampler], model: LoadedModel, config: GenerationConfig, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        make().sample(KitPolicy(model), PROMPTS, config)


@pytest.mark.parametrize("rules", [SamplingRules(top_p=0.9), SamplingRules(top_k=3), SamplingRules(greedy=True)])
def test_log_probabilities_are_given_only_where_they_are_over_all_tokens(
    make: Callable[..., VllmSampler], model: LoadedModel, rules: SamplingRules
) -> None:
    config = GenerationConfig(rules=rules, max_new_tokens=3, logprobs=True)
    assert all(each.logprobs is None for each in make().sample(KitPolicy(model), PROMPTS, config))


def test_a_key_comes_from_the_environment(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.faults = {"locked"}
    with pytest.raises(
        UsageError, match=r"HTTP 401 .* Put the server's key into the environment variable VLLM_API_KEY"
    ):
        make().sample(KitPolicy(model), PROMPTS, GREEDY)
    monkeypatch.setenv("VLLM_API_KEY", "open")
    assert len(make().sample(KitPolicy(model), PROMPTS, GREEDY)) == 4


# --------------------------------------------------------------------------------------------------------------- weights


def test_weights_are_sent_once_for_each_version_and_lie_there_alone(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel, tmp_path: Path
) -> None:
    policy, asks = KitPolicy(model), make()
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "mine.txt").write_text("kept")
    asks.sample(policy, PROMPTS, GREEDY)
    asks.sample(policy, PROMPTS, GREEDY)
    assert len(requests(engine, "/collective_rpc")) == 1
    policy.train()
    asks.sample(policy, PROMPTS, GREEDY)
    loaded = requests(engine, "/collective_rpc")
    assert [Path(each["kwargs"]["weights_path"]).name for each in loaded] == ["weights-00000001", "weights-00000002"]
    assert [path for path, _ in engine.said].count("/reset_prefix_cache") == 2, "old prefixes are of old weights"
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["mine.txt", "weights-00000002"]
    found = open_folder(tmp_path / "weights" / "weights-00000002")
    own = dict(model.model.named_parameters())
    assert found.keys() == own.keys()
    assert all(torch.equal(load(), own[name]) for name, load in found.items())


def test_the_server_may_see_the_folder_under_another_path(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.symlink_to(tmp_path / "weights")
    make(server_folder=there).sample(KitPolicy(model), PROMPTS, GREEDY)
    (asked,) = requests(engine, "/collective_rpc")
    assert asked["kwargs"]["weights_path"] == str(there / "weights-00000001")


def test_a_server_that_breaks_off_gets_the_weights_again(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was started anew has the weights of its start."""
    waits: list[float] = []
    monkeypatch.setattr(sampler.time, "sleep", waits.append)
    policy, asks = KitPolicy(model), make()
    first = asks.sample(policy, PROMPTS, GREEDY)
    with torch.no_grad():
        for parameter in engine._loaded.model.parameters():
            parameter.zero_()
    engine.faults = {"breaks off"}
    again = asks.sample(policy, PROMPTS, GREEDY)
    assert [each.ids for each in again] == [each.ids for each in first]
    assert waits == [1.0]
    assert len(requests(engine, "/collective_rpc")) == 2


# ---------------------------------------------------------------------------------------------------------------- faults

FAULTS: Mapping[str, tuple[type[Exception], str, Mapping[str, Any]]] = {
    "late": (ServerLateError, r"has not answered in 0\.5 s\. .*--sampler\.timeout", {"timeout": 0.5}),
    "garbage": (ServerAnswerError, "/v1/completions answers .<html>a proxy's own page</html>., which is not JSON", {}),
    "nonsense": (ServerAnswerError, "prompt_logprobs None, which is not one value for each of", {}),
    "too few": (ServerAnswerError, "gives 0 answers to a prompt, and 1 were asked for", {}),
    "other weights": (OtherWeightsError, r"nats a token from those of the trainer \(allowed: 0\.1\)", {}),
    "cannot load": (ServerUnreachableError, "/collective_rpc: HTTP 500 .*EngineCore.* look at its log", {"retries": 0}),
    "breaks off": (ServerUnreachableError, "cannot be reached .*go on with --resume", {"retries": 0}),
    "no dev mode": (UsageError, "HTTP 404 .* Start the server with VLLM_SERVER_DEV_MODE=1", {}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_is_named(
    fault: str, make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel
) -> None:
    kind, says, options = FAULTS[fault]
    engine.faults = {fault}
    with pytest.raises(kind, match=says):
        make(**options).sample(KitPolicy(model), PROMPTS, GenerationConfig(max_new_tokens=3))


def test_a_server_that_is_not_there_is_tried_again_and_named(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(sampler.time, "sleep", waits.append)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    asks = VllmSampler(VllmConfig(url=url, folder=tmp_path, retries=6))
    with pytest.raises(ServerUnreachableError, match=f"{url}/v1/models cannot be reached .*Connection refused"):
        asks.sample(KitPolicy(model), PROMPTS, GREEDY)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]


def test_a_server_that_ignores_new_weights_is_found_though_a_step_moves_little(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel
) -> None:
    """Its log-probabilities are near enough, and the same to the last bit."""
    policy, asks = KitPolicy(model), make()
    asks.sample(policy, PROMPTS, GREEDY)
    engine.faults = {"ignores weights"}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.add_(0.003 * torch.randn(parameter.shape, generator=generator))
    policy.version += 1
    with pytest.raises(
        OtherWeightsError, match="those of before to the last bit, and the trainer's have moved by up to"
    ):
        asks.sample(policy, PROMPTS, GREEDY)
    engine.faults = set()
    assert len(asks.sample(policy, PROMPTS, GREEDY)) == 4, "it is not lost for that"


def test_a_step_that_changes_nothing_is_no_fault_of_the_server(
    make: Callable[..., VllmSampler], model: LoadedModel
) -> None:
    policy, asks = KitPolicy(model), make()
    for _ in range(3):
        asks.sample(policy, PROMPTS, GREEDY)
        policy.version += 1


def test_a_server_that_reads_other_prompts_than_were_asked_is_found(
    make: Callable[..., VllmSampler], engine: StandIn, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second begin token, for instance."""
    monkeypatch.setattr(VllmSampler, "_prove", lambda *given: None)
    engine.faults = {"adds a token"}
    with pytest.raises(
        ServerAnswerError, match=r"the server read the prompt \[1, 5, 9, 3\], and \[5, 9, 3\] was asked"
    ):
        make().sample(KitPolicy(model), PROMPTS, GREEDY)


def test_log_probabilities_before_the_temperature_are_refused(model: LoadedModel, tmp_path: Path) -> None:
    """vLLM's default, raw_logprobs: a ratio with them would be another one at each temperature."""
    warm = GenerationConfig(rules=SamplingRules(temperature=0.7), max_new_tokens=6)
    plain = GenerationConfig(max_new_tokens=6)
    with serve(StandIn(deepcopy(model), mode="raw_logprobs")) as url:
        asks = VllmSampler(VllmConfig(url=url, folder=tmp_path / "weights"))
        assert len(asks.sample(KitPolicy(model), PROMPTS, plain)) == 4, "at temperature 1 they are the same"
        with pytest.raises(OtherWeightsError, match="start it with --logprobs-mode processed_logprobs"):
            asks.sample(KitPolicy(model), PROMPTS, warm)


def test_what_is_in_the_way_of_the_weights_is_named_and_stays(
    make: Callable[..., VllmSampler], model: LoadedModel, tmp_path: Path
) -> None:
    strange = tmp_path / "weights" / "weights-00000001" / "notes.txt"
    strange.parent.mkdir(parents=True)
    strange.write_text("mine")
    with pytest.raises(SamplerError, match=r"notes\.txt was not written by this sampler; move it away"):
        make().sample(KitPolicy(model), PROMPTS, GREEDY)
    assert strange.read_text() == "mine"


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://here", "http://me:secret@here", "http://", "http://here/?key=1"]
)
def test_the_config_says_what_an_address_is(url: str) -> None:
    with pytest.raises(ValueError, match="write http://HOST:PORT, with a key in VLLM_API_KEY alone"):
        VllmConfig(url=url, folder=Path("weights"))
