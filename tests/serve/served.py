"""Servers in a thread of the test, over tiny models; and a model that says what a test wants."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "train" / "generation"))

from twins import LatinTokenizer, twins

from mt_core import MtError
from mt_core.nn import Batch, KVCache
from mt_plugin_serve.access import Access
from mt_plugin_serve.limits import Limits
from mt_plugin_serve.models import Models, ServedModel
from mt_plugin_serve.server import serve
from mt_plugin_serve.sockets import listen
from mt_plugin_standard.tokenizers.byte import ByteTokenizer
from mt_tools import template_of
from mt_train import LoadedModel

__all__ = ["LatinTokenizer", "twins"]


class Server:
    """A server that runs, by its address; ``said`` is what it told the console."""

    def __init__(self, port: int, said: list[str]) -> None:
        self.port, self.said = port, said
        self.url = f"http://127.0.0.1:{port}"
        self.stop: Callable[[], None] = lambda: None
        self.error: MtError | None = None

    def ask(
        self, method: str, path: str, body: Any = None, *, timeout: float = 30, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Return status, object (or text) and headers of an answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        fields = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): each for name, each in headers.items()},
        }
        connection.request(method, path, raw, fields)
        answer = connection.getresponse()
        content, kind = answer.read(), answer.headers["content-type"]
        connection.close()
        return (
            answer.status,
            json.loads(content) if kind == "application/json" else content.decode(),
            dict(answer.headers),
        )

    def complete(self, **fields: Any) -> Any:
        """Return the answer to a completion."""
        status, found, _ = self.ask("POST", "/v1/completions", {"model": "tiny", **fields})
        assert status == 200, found
        return found

    def chat(self, content: str, **fields: Any) -> Any:
        """Return the answer to a chat of one message."""
        messages = [{"role": "user", "content": content}]
        status, found, _ = self.ask("POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, **fields})
        assert status == 200, found
        return found

    def figure(self, name: str) -> float:
        """Return one of the metrics."""
        text = self.ask("GET", "/metrics")[1]
        return float(next(line for line in text.splitlines() if line.startswith(f"mt_serve_{name} ")).split()[1])


def model_of(loaded: LoadedModel, *, template: str = "chatml") -> Models:
    return Models({"tiny": ServedModel("tiny", loaded, template_of(loaded, template))})


@contextmanager
def running(models: Models, access: Access | None = None, *, dies: bool = False, **limits: Any) -> Iterator[Server]:
    """A server, until the block ends."""
    given = {"grace": 5, **limits}
    sock = listen("127.0.0.1", 0)
    said: list[str] = []
    server, ready = Server(sock.getsockname()[1], said), threading.Event()

    def on_ready(stop: Callable[[], None]) -> None:
        server.stop = stop
        ready.set()

    def run() -> None:
        try:
            serve(models, sock, limits=Limits(**given), access=access or Access(), report=said.append, ready=on_ready)
        except MtError as error:  # the test looks at it
            server.error = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
        if server.error is not None and not dies:
            raise server.error


class Sharp(nn.Module):
    """A head that leaves no doubt; a module, since some machines look for its layers."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * 100


class Scripted(nn.Module):
    """Says a text of bytes: behind position p comes the byte p - ``start`` of it, then the end. ``start`` is a prompt's last position."""

    ragged_batches = True
    media = None

    def __init__(self, said: bytes, start: int, vocabulary: int = 259, end: int = 257) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.zeros(1)), Sharp()
        self.said = torch.tensor([*said, end])
        self.start, self.vocabulary = start, vocabulary
        self.delay = 0.0
        """Seconds of a step."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        rows, tokens = batch.input_ids.shape
        time.sleep(self.delay)
        cache.append(0, torch.zeros(rows, tokens, 1, 1), torch.zeros(rows, tokens, 1, 1))
        cache.length += tokens
        place = (batch.positions - self.start).clamp(0, len(self.said) - 1)
        return torch.nn.functional.one_hot(self.said[place], self.vocabulary).float()


def scripted(said: str | bytes, start: int, *, delay: float = 0.0, **more: Any) -> LoadedModel:
    """A model that says this behind a prompt whose last position is ``start``."""
    raw = said if isinstance(said, bytes) else said.encode()
    tokenizer = ByteTokenizer()
    model: Any = Scripted(raw, start, tokenizer.size).eval()
    model.delay = delay
    return LoadedModel(model, tokenizer, 4096, (tokenizer.eos_id,), **more)
