"""Continue prompts with ``llama-server`` of llama.cpp over a GGUF file, asked over HTTP on this machine alone.

The protocol is that of its page (https://github.com/ggml-org/llama.cpp/tree/master/tools/server): ``/health``, ``/completion`` with ids as
prompt and ``return_tokens``, ``/tokenize``.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

STARTS, ANSWERS = 600.0, 600.0
"""Seconds that it may take to be there, and to answer a request."""


def main() -> None:
    """Answer one request; ``reader`` in it is the program."""
    asked = json.load(sys.stdin)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [asked["reader"], "-m", asked["folder"], "--host", "127.0.0.1", "--port", str(port)]
    words += ["--no-webui", "--ctx-size", str(asked["context"]), "--parallel", "1"]
    with tempfile.TemporaryFile() as log, subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT) as server:
        try:
            wait(f"http://127.0.0.1:{port}/health", server, log)
            print(json.dumps(answer(f"http://127.0.0.1:{port}", asked)))
        finally:
            server.kill()


def answer(url: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the server makes of each prompt and each text."""
    answers = []
    for row in asked["rows"]:
        found = ask(
            f"{url}/completion",
            {
                "prompt": row,
                "n_predict": asked["most"],
                "temperature": 0.0,
                "samplers": ["temperature"],
                "repeat_penalty": 1.0,
                "cache_prompt": False,
                "return_tokens": True,
            },
        )
        answers.append({"ids": found["tokens"], "ended": found.get("stop_type") == "eos"})
    texts = [
        ask(f"{url}/tokenize", {"content": text, "add_special": True, "parse_special": False})["tokens"]
        for text in asked["texts"]
    ]
    return {"version": "llama.cpp", "answers": answers, "texts": texts}


def ask(url: str, content: dict[str, Any] | None = None) -> Any:
    """Return the JSON that is answered."""
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - http on this machine
    with urllib.request.urlopen(request, timeout=ANSWERS) as response:  # noqa: S310
        return json.loads(response.read())


def wait(url: str, server: subprocess.Popen[bytes], log: Any) -> None:
    """Return when it has loaded the file. Exits with the end of its log where it stops first."""
    end = time.monotonic() + STARTS
    while time.monotonic() < end and server.poll() is None:
        try:
            ask(url)
            return
        except (urllib.error.URLError, OSError, ValueError):
            time.sleep(0.05)
    log.seek(0)
    sys.exit(log.read()[-2000:].decode(errors="replace") or "the server did not answer")


if __name__ == "__main__":
    main()
