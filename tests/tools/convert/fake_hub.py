"""As much of the Hub as a push uses, over HTTP, in memory.

``fail_at`` is the number of the request (from 1) that fails; with ``after`` it fails once it is done, as where an answer is lost.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub:
    def __init__(self) -> None:
        self.files: dict[str, dict[str, tuple[bytes, bool]]] = {}
        """Repository → path → content, and whether it is a large file."""
        self.private: dict[str, bool] = {}
        self.commits: list[str] = []
        self.large: dict[str, bytes] = {}
        self.seen: list[tuple[str, str, str | None]] = []
        """Method, path and token of each request."""
        self.bodies: list[bytes] = []
        self.fail_at, self.after = 0, False
        self.url = ""

    def sha(self) -> str:
        return hashlib.sha1(json.dumps(self.commits).encode()).hexdigest()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Status and content."""
        path, _, _ = path.partition("?")
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.startswith("/large/"):
            self.large[path.removeprefix("/large/")] = body
            return 200, {}
        if path.endswith("/info/lfs/objects/batch"):
            return 200, {"objects": [self._batch(each) for each in json.loads(body)["objects"]]}
        parts = path.removeprefix("/api/models/").split("/")
        name, rest = "/".join(parts[:2]), parts[2:]
        if name not in self.files:
            return 404, {"error": "Repository not found"}
        if not rest:
            return 200, {
                "id": name,
                "sha": self.sha(),
                "private": self.private[name],
                "siblings": [],
                "tags": [],
                "modelId": name,
            }
        if rest[0] == "tree":
            return 200, [self._entry(*each) for each in self.files[name].items()]
        if rest[0] == "preupload":
            return 200, {"files": [self._mode(name, each["path"]) for each in json.loads(body)["files"]]}
        if rest[0] == "commit":
            return self._commit(name, [json.loads(line) for line in body.splitlines()])
        return 404, {"error": path}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.files:
            return 409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
        self.files[name] = {".gitattributes": (b"*.safetensors filter=lfs\n", False)}
        self.private[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
        return 200, {"url": f"{self.url}/{name}"}

    def _batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = {"oid": asked["oid"], "size": asked["size"]}
        if asked["oid"] in self.large:
            return found
        return {**found, "actions": {"upload": {"href": f"{self.url}/large/{asked['oid']}", "header": {}}}}

    def _mode(self, name: str, path: str) -> dict[str, Any]:
        is_large = path.endswith(".safetensors")
        there = self.files[name].get(path)
        oid = None if there is None else blob(there[0])
        return {"path": path, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False, "oid": oid}

    def _entry(self, path: str, content: tuple[bytes, bool]) -> dict[str, Any]:
        value, is_large = content
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(value), "oid": blob(value)}
        if is_large:
            entry["lfs"] = {"oid": hashlib.sha256(value).hexdigest(), "size": len(value), "pointerSize": 130}
        return entry

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        header, *operations = lines
        assert header["value"].get("parentCommit") in (None, self.sha()), "another commit came between"
        new = {}
        for each in operations:
            value = each["value"]
            if each["key"] == "file":
                new[value["path"]] = (base64.b64decode(value["content"]), False)
            else:
                new[value["path"]] = (self.large[value["oid"]], True)
        self.files[name] |= new
        self.commits.append(header["value"]["summary"])
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{self.sha()}", "commitOid": self.sha()}


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        length = self.headers.get("Content-Length")
        body = (
            self._chunks()
            if length is None and self.headers.get("Transfer-Encoding")
            else self.rfile.read(int(length or 0))
        )
        self.hub.seen.append((self.command, self.path, self.headers.get("Authorization")))
        self.hub.bodies.append(body)
        fails = len(self.hub.seen) == self.hub.fail_at
        status, content = (400, {}) if fails and not self.hub.after else self.hub.answer(self.command, self.path, body)
        if fails:
            status, content = 400, {"error": "the Hub has a bad day"}
        answer = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_HEAD = _handle

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def log_message(self, format: str, *values: Any) -> None:
        """Keep quiet."""


@contextmanager
def serve(hub: Hub) -> Iterator[str]:
    """The address of the Hub, which stops with the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
