"""Weights by name: from the Hub's cache, and a message that helps where there is none."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from mt_train.config.files import read_config

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as ``hf download org/tiny`` leaves it."""
    home = tmp_path_factory.mktemp("hub")
    entry = home / "hub" / "models--org--tiny"
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=300, max_position_embeddings=64))
    model.save_pretrained(entry / "snapshots" / COMMIT)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(COMMIT)
    return home


NAMES = ["org/tiny", f"org/tiny@{COMMIT}", "org/tiny@main"]
"""Names of the cached model."""


def train(home: Path, folder: Path, *weights: str) -> subprocess.CompletedProcess[str]:
    """Train a step with each of these in turn, in one process: ``HF_HOME`` is read when it starts, which takes seconds."""
    words = ["--model", "llama", "--train.steps", "1", "--train.sequence-len", "32"]
    runs = [[*words, "--model.weights", name, "--output", f"run-{number}"] for number, name in enumerate(weights)]
    code = f"from mt_train.cli.train import main; raise SystemExit(max([main(words) for words in {runs!r}]))"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.fixture(scope="module")
def trained(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a run with each of the names."""
    folder = tmp_path_factory.mktemp("trained")
    result = train(home, folder, *NAMES)
    assert result.returncode == 0, result.stderr
    return {name: folder / f"run-{number}" for number, name in enumerate(NAMES)}


@pytest.mark.parametrize("name", NAMES)
def test_a_cached_model_is_used_by_its_name(name: str, trained: dict[str, Path]) -> None:
    config = read_config(trained[name] / "run.yaml")["model"]
    assert (config["weights"], config["dim"], config["vocab_size"]) == (name, 32, 300)


@pytest.mark.parametrize("name", ["org/other", "org/tiny@v2"])
def test_without_network_and_cache_the_message_names_the_cache(name: str, home: Path, tmp_path: Path) -> None:
    result = train(home, tmp_path, name)
    assert result.returncode == 2
    for words in (f"{name} is no path here, not in the cache", str(home / "hub"), "HF_HOME", "hf download org/"):
        assert words in result.stderr
    assert "Traceback" not in result.stderr


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as a download needs; ``org/tiny`` is gated."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        if "/org/" not in self.path:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif self.headers.get("Authorization") != "Bearer hf_secret":
            self.answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif self.path.startswith("/api/"):
            files = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
            tree = [{"type": "file", "path": name, "size": len(c), "oid": "0" * 40} for name, c in self.files.items()]
            about = {"id": "org/tiny", "sha": COMMIT, "siblings": files}
            self.answer(200, json.dumps(tree if "/tree/" in self.path else about).encode(), {})
        else:
            content = self.files[self.path.rpartition("/")[2].partition("?")[0]]
            self.answer(200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def answer(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub(home: Path) -> Iterator[str]:
    snapshot = home / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    Hub.files = {path.name: path.read_bytes() for path in snapshot.iterdir()} | {"pytorch_model.bin": b"a pickle"}
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(hub: str, folder: Path, name: str, token: str | None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HOME": str(folder / "home"), "HF_ENDPOINT": hub, "HF_HUB_DISABLE_XET": "1"}
    environment["HF_HUB_OFFLINE"] = "0"  # the server is on this machine, whatever the environment says of others
    (folder / "home").mkdir()
    (folder / "home" / "token").write_text("hf_secret")  # a login that somebody left there
    environment |= {"HF_TOKEN": token} if token else {}
    code = f"from mt_train.plugins.hub import locate; print(locate({name!r}))"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_weights_are_fetched_with_the_environments_token_and_no_pickle_among_them(hub: str, tmp_path: Path) -> None:
    result = fetch(hub, tmp_path, "org/tiny", "hf_secret")
    assert result.returncode == 0, result.stderr
    folder = Path(result.stdout.strip())
    assert {path.name for path in folder.iterdir()} == set(Hub.files) - {"pytorch_model.bin"}
    assert (folder / "model.safetensors").read_bytes() == Hub.files["model.safetensors"]
    assert not any("pytorch_model.bin" in path for path, _ in Hub.asked)


@pytest.mark.parametrize(
    ("name", "token", "says"),
    [
        ("org/tiny", None, "org/tiny is gated"),
        ("org/tiny", "hf_wrong", "set HF_TOKEN in the environment"),
        ("nobody/x", "hf_secret", "neither a path here nor a public model of the Hub"),
    ],
)
def test_what_cannot_be_fetched_is_told_with_the_way_out(
    name: str, token: str | None, says: str, hub: str, tmp_path: Path
) -> None:
    result = fetch(hub, tmp_path, name, token)
    assert result.returncode == 1
    assert says in result.stderr
    if token is None:
        assert not any(authorization for _, authorization in Hub.asked), "a login on the machine is not used"
