"""Learning from answers that a server writes: whole runs, with one that speaks vLLM's protocol, and with vLLM where it is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stand_in import StandIn, serve

from mt_conformance import BaseSamplerConformance
from mt_core.generation import GenerationConfig
from mt_core.weights import open_folder
from mt_plugin_vllm import sampler
from mt_plugin_vllm.completions import PromptGroup, completion_request
from mt_train import load_run
from mt_train.cli.train import main

Train = Callable[..., tuple[int, str]]
PROMPTS, GROUP = 4, 4


class Failing(StandIn):
    """Fails when it is to load weights for this time (from 1)."""

    def __init__(self, *given: Any, at: int) -> None:
        super().__init__(*given)
        self._at, self._times = at, 0

    def answer(self, path: str, content: Any) -> tuple[int, Any]:
        self._times += path == "/collective_rpc"
        return (503, {"error": "EngineDeadError"}) if self._times == self._at else super().answer(path, content)


@pytest.fixture
def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kit_model: None
) -> Train:
    """``mt-train`` on prompts with the kit's model: the exit code, and all that was printed."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"{n}: "}) + "\n" for n in range(8)))
    given = ["--model", "kit-tiny", "--dataset", "jsonl", "--dataset.path", "prompts.jsonl", "--data.eval", "none"]
    given += ["--objective.prompts", str(PROMPTS), "--objective.group", str(GROUP)]
    given += ["--objective.max-new-tokens", "8", "--train.sequence-len", "64"]
    given += ["--rewards", "pattern", "--rewards.pattern.pattern", "(?i:[a-z])", "--rewards.pattern.count", "true"]

    def run(*words: str, name: str = "run") -> tuple[int, str]:
        objective = [] if "--objective" in words else ["--objective", "grpo"]
        code = main([*words] if "--resume" in words else [*given, *objective, *words, "--output", name])
        written = capsys.readouterr()
        return code, " ".join((written.out + written.err).split())

    return run


def answers(name: str = "run") -> list[dict[str, Any]]:
    return list(map(json.loads, Path(name, "rollouts.jsonl").read_text().splitlines()))


def records(name: str = "run") -> list[dict[str, Any]]:
    return list(map(json.loads, Path(name, "metrics.jsonl").read_text().splitlines()))


@pytest.fixture
def engine(tmp_path: Path) -> StandIn:
    return StandIn(BaseSamplerConformance().loaded(tmp_path))


@pytest.mark.long
def test_a_run_learns_from_answers_of_a_server_that_has_its_weights_in_each_iteration(
    train: Train, engine: StandIn
) -> None:
    with serve(engine) as url:
        words = ["--sampler.url", url, "--sampler.folder", "weights", "--train.steps", "30", "--optimizer.lr", "1e-2"]
        code, said = train("--sampler", "vllm", *words)
    assert code == 0, said
    loaded = [content["kwargs"]["weights_path"] for path, content in engine.said if path == "/collective_rpc"]
    assert len(loaded) == len(set(loaded)) == 30
    assert len(answers()) == 30 * PROMPTS * GROUP
    rewards = [each["reward"] for each in records()]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.08
    lock = json.loads(Path("run/plugins.lock.json").read_text())
    assert "mt-plugin-vllm" in lock["sha256"] or "mt-plugin-vllm" in lock["editable"]


def test_with_the_same_draws_the_run_is_that_of_the_trainer_itself(
    train: Train, engine: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the token and to the last bit of each loss, with the trained weights and with a copy: only chance is told to the server here."""

    def request_of(group: PromptGroup, config: GenerationConfig, *more: Any) -> dict[str, Any]:
        return {**completion_request(group, config, *more), "seed": config.seed, "place": group.first}

    monkeypatch.setattr(sampler, "completion_request", request_of)
    words = ["--train.steps", "4", "--optimizer.lr", "1e-2"]
    with serve(engine) as url:
        given = ["--sampler.url", url, "--sampler.folder", "weights"]
        code, said = train(*words, "--sampler", "vllm", *given, name="theirs")
    assert code == 0, said
    for name in ("own", "copy"):
        code, said = train(*words, "--sampler", name, name=name)
        assert code == 0, said
        assert [each["ids"] for each in answers("theirs")] == [each["ids"] for each in answers(name)]
        assert [each["loss"] for each in records("theirs")] == [each["loss"] for each in records(name)]
    assert len({each["loss"] for each in records("theirs")}) == 4


@pytest.mark.parametrize("objective", ["ppo", "rejection", "online-dpo", "dapo"])
def test_every_objective_that_collects_answers_takes_them_from_the_sampler(
    train: Train, engine: StandIn, objective: str
) -> None:
    words = ["--objective", objective, "--train.steps", "2", "--sampler", "vllm", "--sampler.folder", "weights"]
    with serve(engine) as url:
        code, said = train(*words, "--sampler.url", url)
    assert code == 0, said
    loads = [path for path, _ in engine.said if path == "/collective_rpc"]
    iterations = {each["iteration"] for each in answers()}
    assert len(loads) == len(iterations) >= 1, "several steps may learn from one iteration"


def test_tokens_are_weighed_by_how_likely_the_server_drew_them(train: Train, engine: StandIn) -> None:
    """The model of the server is that of the trainer here, so that nothing is to be corrected."""
    words = [
        "--objective.importance",
        "token",
        "--train.steps",
        "2",
        "--sampler",
        "vllm",
        "--sampler.folder",
        "weights",
    ]
    with serve(engine) as url:
        code, said = train(*words, "--sampler.url", url)
    assert code == 0, said
    assert all(each["sampler_ratio"] == pytest.approx(1.0, abs=1e-4) for each in records())
    assert all(len(each["sampled"]) == len(each["ids"]) for each in answers())


@pytest.mark.long
def test_two_processes_at_zero_3_send_the_weights_that_one_has(train: Train, engine: StandIn) -> None:
    """Every rank helps to gather them, one writes and asks; the answers are those of one process, as draws follow from seeds."""
    words = ["--train.steps", "3", "--optimizer.lr", "1e-2", "--sampler", "vllm", "--sampler.folder", "weights"]
    with serve(engine) as url:
        assert train(*words, "--sampler.url", url, name="one")[0] == 0
        two = ["--nproc-per-node", "2", "--parallel.zero-stage", "3"]
        code, said = train(*words, "--sampler.url", url, *two, name="two")
    assert code == 0, said
    assert [each["ids"] for each in answers("one")] == [each["ids"] for each in answers("two")]
    for one, other in zip(records("one"), records("two"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5, abs=1e-6)


def test_a_run_whose_server_fails_goes_on_from_its_checkpoint(train: Train, tmp_path: Path) -> None:
    words = ["--sampler", "vllm", "--sampler.folder", "weights", "--sampler.retries", "0", "--train.steps", "4"]
    loaded = BaseSamplerConformance().loaded(tmp_path)
    with serve(Failing(loaded, at=3)) as url:
        code, said = train(*words, "--sampler.url", url, "--checkpoint.every-steps", "1")
        port = int(url.rpartition(":")[2])
    assert code == 1
    assert "/collective_rpc: HTTP 503" in said
    assert "The server failed; look at its log" in said
    assert len(records()) == 2
    with serve(StandIn(loaded), port) as url:
        code, said = train("--resume", "run")
    assert code == 0, said
    assert [each["step"] for each in records()] == [1, 2, 3, 4]
    assert [each["iteration"] for each in answers()[:: PROMPTS * GROUP]] == [0, 1, 2, 3]


def test_weights_of_an_adapter_arrive_merged(train: Train, engine: StandIn) -> None:
    words = ["--adapter", "lora", "--optimizer.lr", "3e-2", "--train.steps", "3"]
    with serve(engine) as url:
        code, said = train(*words, "--sampler", "vllm", "--sampler.url", url, "--sampler.folder", "weights")
    assert code == 0, said
    (folder,) = Path("weights").iterdir()
    found, base = open_folder(folder), dict(load_run("run").model.named_parameters())
    assert not [name for name in found if "lora" in name]
    assert found.keys() == dict(engine._loaded.model.named_parameters()).keys()
    assert len(base) > len(found), "the run's own has the adapter beside its weights"


def test_a_server_that_ignores_the_weights_ends_the_run(train: Train, engine: StandIn) -> None:
    class Forgetful(StandIn):
        def answer(self, path: str, content: Any) -> tuple[int, Any]:
            found = super().answer(path, content)
            self.faults |= {"ignores weights"} if path == "/collective_rpc" else set()
            return found

    with serve(Forgetful(engine._loaded)) as url:
        code, said = train(
            "--sampler", "vllm", "--sampler.url", url, "--sampler.folder", "weights", "--train.steps", "9"
        )
    assert code == 1
    assert "it has not loaded the new weights" in said or "nats a token from those of the trainer" in said
    assert len(records()) < 9
