"""``mt-serve``: one real process for what only a process has, and the faults of its options."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import Server

from mt_plugin_serve.command import main
from mt_plugin_serve.sockets import listen
from mt_tools.cli.generate import main as mt_generate
from mt_train.cli.train import main as train

WORDS = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "2", "--train.micro-batch-size", "2"]
WORDS += ["--train.sequence-len", "128", "--data.eval", "none", "--data.read-rows", "8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("serve") / "run"
    assert train([*WORDS, "--output", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def process(run: Path) -> Iterator[tuple[subprocess.Popen[str], Server]]:
    words = [sys.executable, "-m", "mt_plugin_serve.command", "--run", str(run), "--port", "0", "--name", "tiny"]
    with subprocess.Popen([*words, "--chat-template", "chatml"], stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        said = next(line for line in started.stderr if "http://" in line)
        yield started, Server(int(said.split("/v1")[0].rpartition(":")[2]), [])
        started.kill()


def test_a_process_serves_a_run_as_mt_generate_continues_it(
    process: tuple[subprocess.Popen[str], Server], run: Path, tmp_path: Path
) -> None:
    _, server = process

    def write(rows: list[dict[str, object]], *words: str) -> list[str]:
        given, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
        given.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = ["--prompts", str(given), "--out", str(out), "--overwrite"]
        assert mt_generate(["--run", str(run), "--max-new-tokens", "12", *files, *words]) == 0
        return [json.loads(line)["text"] for line in out.read_text("utf-8").splitlines()]

    for ours, theirs in (
        (["--greedy"], {"temperature": 0}),
        (["--seed", "5", "--top-p", "0.9"], {"seed": 5, "top_p": 0.9}),
    ):
        prompts = ["The ", "And you?"]
        answer = server.complete(prompt=prompts, max_tokens=12, **theirs)
        assert [each["text"] for each in answer["choices"]] == write([{"prompt": each} for each in prompts], *ours)
    messages = [{"role": "user", "content": "Hello"}]
    texts = write([{"messages": messages}] * 2, "--chat-template", "chatml", "--seed", "3")
    chosen = server.chat("Hello", max_tokens=12, seed=3, n=2)["choices"]
    assert [each["message"]["content"] for each in chosen] == texts


def test_a_port_that_is_taken_is_told_before_the_model_loads(
    process: tuple[subprocess.Popen[str], Server], capsys: pytest.CaptureFixture[str]
) -> None:
    _, server = process
    assert main(["--run", "nowhere", "--port", str(server.port)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"cannot listen on port {server.port} of 127.0.0.1: Address already in use" in said


def test_sigterm_finishes_what_runs_refuses_the_rest_and_ends_0(process: tuple[subprocess.Popen[str], Server]) -> None:
    """The last of this process."""
    started, server = process
    with ThreadPoolExecutor(1) as pool:
        asked = {"prompt": "The ", "max_tokens": 400, "n": 8, "logit_bias": {"257": -100}, "seed": 1}
        running = pool.submit(server.complete, **asked)
        while server.figure("running_texts") < 8:
            time.sleep(0.01)
        began = time.monotonic()
        started.send_signal(signal.SIGTERM)
        assert running.result()["usage"]["completion_tokens"] == 8 * 400
    assert started.wait(20) == 0
    assert time.monotonic() - began < 30
    with pytest.raises(ConnectionError):
        server.ask("GET", "/health")
    assert started.stderr is not None
    assert started.stderr.read() == "notice: ended\n"


FAULTS = {
    "--port 8000": "give one of --run, --checkpoint, or --weights",
    "--run r --weights w": "give one of --run, --checkpoint, or --weights; got run, weights",
    "--run r --port 70000": "--port has to be from 0 to 65535; got 70000",
    "--run r --max-rows 0": "--max-rows has to be from 1 to 4,096 texts; got 0",
    "--run r --cache-tokens 0": "--cache-tokens has to be from 1",
    "--run r --max-body-mib nan": "--max-body-mib has to be from",
    "--run r --adapter a=b": "--adapter belongs to --weights",
    "--weights w --adapter a": "--adapter needs NAME=FOLDER",
    "--weights w --adapter a=b --adapter a=c": "--adapter has the name 'a' twice",
    "--run r --host 0.0.0.0": "set MT_API_KEY in the environment",
    "--run nowhere --port 0": "nowhere",
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_gets_one_clear_message(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MT_API_KEY", raising=False)
    assert main(words.split()) in (1, 2)
    said = capsys.readouterr().err
    assert FAULTS[words] in said
    assert "Traceback" not in said


def test_a_port_is_free_again_at_once() -> None:
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    first.close()
    listen("127.0.0.1", port).close()
