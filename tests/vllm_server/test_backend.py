"""``mt-generate --prompts … --backend vllm`` beside a server that speaks vLLM's protocol over the same model: the same output file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stand_in import MODEL, StandIn, serve

from mt_core import UsageError
from mt_core.generation import GenerationConfig, SamplingRules
from mt_plugin_vllm import server
from mt_plugin_vllm.backend import VllmBackend
from mt_plugin_vllm.config import ServerConfig
from mt_train import load_run
from mt_train.cli.train import main as mt_train

mt_generate = pytest.importorskip("mt_tools.cli.generate").main
pytestmark = pytest.mark.needs("mt-plugin-llama")

ROWS = [
    {"prompt": "The quick brown fox"},
    {"id": "chat", "messages": [{"role": "user", "content": "Where is Paris?"}]},
    {"prompt": "naïve 日本", "more": {"kept": True}},
    {"prompt": "a" * 120},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with a template, whose context of 128 tokens is short for the last prompt."""
    out = tmp_path_factory.mktemp("runs") / "run"
    shape = "--model.dim 32 --model.n-layers 1 --model.n-heads 2 --model.n-kv-heads 1 --model.ffn-dim 32 --model.max-seq-len 128"
    rows = "--dataset demo --data.template chatml --data.read-rows 4 --eval.samples 0"
    words = f"--model llama {shape} {rows} --train.steps 1 --train.sequence-len 32 --output {out}"
    assert mt_train(words.split()) == 0
    return out


@pytest.fixture
def engine(run: Path) -> StandIn:
    return StandIn(load_run(run))


@pytest.fixture
def url(engine: StandIn) -> Iterator[str]:
    with serve(engine) as address:
        yield address


@pytest.fixture
def ask(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``ask(out, words …)``: what the command said; ``fails=True`` asks for an error."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def call(out: str, *words: str, fails: bool = False) -> str:
        common = ["--run", str(run), "--prompts", str(file), "--out", str(tmp_path / out), "--max-new-tokens", "12"]
        code = mt_generate([*common, *words])
        said = capsys.readouterr().err
        assert (code != 0) == fails, said
        return said

    return call


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_output_is_that_of_the_model_here(
    ask: Callable[..., str], url: str, engine: StandIn, tmp_path: Path
) -> None:
    """Texts, why they ended and how many tokens they have; rendered by the run's template, ids both ways."""
    ask("here.jsonl", "--greedy", "--stop", "q")
    said = ask("there.jsonl", "--greedy", "--stop", "q", "--backend", "vllm", "--backend-option", f"url={url}")
    assert "whether it serves the weights of this run, nobody here can see" in said
    here, there = lines(tmp_path / "here.jsonl"), lines(tmp_path / "there.jsonl")
    assert there == here
    assert here[3]["finish"] == "context"
    requests = [content for path, content in engine.said if path == "/v1/completions"]
    assert len(requests) == len(ROWS)
    assert len({each["seed"] for each in requests}) == len(ROWS)
    settings = json.loads((tmp_path / "there.jsonl.settings.json").read_text())
    assert settings["backend"] == {"name": "vllm", "served_model": MODEL}


def test_an_output_that_was_cut_off_goes_on_with_the_rows_that_it_lacks(
    ask: Callable[..., str], url: str, engine: StandIn, tmp_path: Path
) -> None:
    words = ("--temperature", "0.7", "--backend", "vllm", "--backend-option", f"url={url}")
    ask("out.jsonl", *words)
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole[: whole.index(b"\n") + 20])
    engine.said.clear()
    ask("out.jsonl", *words)
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    assert len([path for path, _ in engine.said if path == "/v1/completions"]) == len(ROWS) - 1
    assert "backend was" in ask("out.jsonl", "--temperature", "0.7", fails=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--backend", "vlm"), "pip install mt-plugin-vlm"),
        (("--backend", "vllm", "--backend-option", "ulr=x"), "Known: url, served_model, requests, timeout, retries"),
        (("--backend", "vllm", "--backend-option", "url"), "is NAME=VALUE"),
        (
            ("--backend", "vllm", "--num-beams", "2"),
            "backend vllm has no num_beams; leave it out, or leave --backend out",
        ),
        (("--backend", "vllm", "--choices", "a,b"), "backend vllm has no choices"),
        (("--backend", "vllm", "--batch-size", "2"), "--backend-option requests=N"),
        (("--backend-option", "url=x"), "belongs to --backend"),
        (("--backend", "vllm", "--backend-option", "url=http://127.0.0.1:9"), "cannot be reached"),
    ],
)
def test_what_a_backend_cannot_do_is_refused_by_name(
    words: tuple[str, ...], says: str, ask: Callable[..., str]
) -> None:
    assert says in ask("out.jsonl", *words, fails=True)


def test_a_server_of_several_models_asks_which(url: str, engine: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is the base: its texts would be taken for those of the adapter."""
    monkeypatch.setattr(server.Server, "models", lambda self: ["base", "sums"])
    with pytest.raises(UsageError, match="serves base, sums: a model and its adapters"):
        VllmBackend(ServerConfig(url=url)).describe()
    assert VllmBackend(ServerConfig(url=url, served_model="sums")).describe() == {"served_model": "sums"}
    with pytest.raises(UsageError, match="and not 'other'"):
        VllmBackend(ServerConfig(url=url, served_model="other")).describe()


def test_a_server_that_breaks_off_is_asked_again(url: str, engine: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt_plugin_vllm.backend.time.sleep", lambda seconds: None)
    config = GenerationConfig(rules=SamplingRules(greedy=True), max_new_tokens=4)
    backend = VllmBackend(ServerConfig(url=url))
    backend.describe()
    engine.faults.add("breaks off")
    found = dict(backend.write({7: [5, 6], 9: [8]}, config, most={7: 4, 9: 2}, end_ids=[]))
    assert found.keys() == {7, 9}
    assert len(found[7]) <= 4
    assert len(found[9]) <= 2


def test_a_prompt_with_room_for_fewer_tokens_than_a_text_is_to_have_is_answered_as_here(
    ask: Callable[..., str], url: str, engine: StandIn, tmp_path: Path
) -> None:
    """The last prompt leaves room for fewer than ten tokens."""
    words = ("--greedy", "--min-new-tokens", "10")
    ask("here.jsonl", *words)
    ask("there.jsonl", *words, "--backend", "vllm", "--backend-option", f"url={url}")
    here, there = lines(tmp_path / "here.jsonl"), lines(tmp_path / "there.jsonl")
    assert [each["finish"] for each in there] == [each["finish"] for each in here]
    assert there[3] == here[3]
    assert here[3]["finish"] == "context"
    requests = [content for path, content in engine.said if path == "/v1/completions"]
    asked = sorted((each["min_tokens"], each["max_tokens"]) for each in requests)
    assert asked[0][0] == asked[0][1] < 10
    assert asked[1:] == [(10, 12)] * 3
