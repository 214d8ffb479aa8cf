"""Records of runs, and a server that is asked by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from mt_plugin_board.access import Access
from mt_plugin_board.index import Index
from mt_plugin_board.server import Server

CONFIG = {"model": {"name": "llama"}, "optimizer": {"name": "adamw", "lr": 0.003}, "train": {"steps": 60}}
ABOUT = {
    "schema": 1,
    "model": "llama tiny from mt-plugin-llama 0.1.0",
    "total_steps": 60,
    "started": "2026-03-01T10:00:00+0000",
}


def record(step: int) -> dict[str, Any]:
    figures = {"step": step, "loss": 5 / step + 1.5, "lr": 1e-3, "grad_norm": 1 + 1 / step, "tokens": 2000 * step}
    figures |= {"tokens_per_second": 10_000.0, "memory_gib": 0.5, "data_wait_seconds": 0.001}
    return figures | ({"eval_loss": 4 / step + 1.6} if step % 20 == 0 else {})


def text_of(lines: list[Mapping[str, Any]] | tuple[Mapping[str, Any], ...]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def append(path: Path, *lines: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(text_of(lines))


class Client:
    """Asks a server by hand, as a browser would not."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def get(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a stream, as they come."""
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()

        def events() -> Iterator[tuple[str, Any]]:
            name = ""
            for raw in answer:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))

        try:
            yield events()
        finally:
            answer.close()
            connection.close()


@contextmanager
def served(*folders: Path, host: str = "127.0.0.1", token: str | None = None) -> Iterator[Client]:
    server = Server(Index(folders), Access(host, token), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Client(server)
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
