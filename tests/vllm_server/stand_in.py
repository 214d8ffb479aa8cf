"""A server that speaks as much of vLLM's protocol as the sampler uses, over a model of ours: what vLLM's documentation says is returned,
written anew, with weights that it reads from the folder it is told. It can be told to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from mt_core import Sample
from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.nn import TokenObjective, token_logprobs
from mt_core.weights import open_folder
from mt_train import LoadedModel
from mt_train.generation.continuation import continue_prompts

MODEL = "tiny"


class StandIn:
    """The engine behind the server. ``faults`` name what it does wrong, ``mode`` is vLLM's ``--logprobs-mode``."""

    def __init__(self, loaded: LoadedModel, *, mode: str = "processed_logprobs") -> None:
        self._loaded, self._mode = loaded, mode
        self._lock = threading.Lock()
        self.context: int | None = None
        """vLLM's ``--max-model-len``: a request whose prompt has not room for ``max_tokens`` is refused, as there."""
        self.faults: set[str] = set()
        self.said: list[tuple[str, Any]] = []
        """Path and content of each request."""

    def answer(self, path: str, content: Any) -> tuple[int, Any]:
        """Return status and content."""
        self.said.append((path, content))
        with self._lock:
            match path:
                case "/v1/models":
                    return 200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
                case "/v1/completions" if not self._fits(content):
                    return 400, {"error": {"message": f"This model's maximum context length is {self.context} tokens"}}
                case "/v1/completions":
                    return 200, self._complete(content)
                case "/collective_rpc" if "no dev mode" not in self.faults:
                    return self._call(**content)
                case "/reset_prefix_cache" if "no dev mode" not in self.faults:
                    return 200, None
        return 404, {"detail": "Not Found"}

    def load(self, folder: Path) -> None:
        """Read all weights of the model, and no others."""
        own, found = dict(self._loaded.model.named_parameters()), open_folder(folder)
        assert own.keys() == found.keys(), sorted(own.keys() ^ found.keys())
        with torch.no_grad():
            for name, load in found.items():
                own[name].copy_(load())

    def _call(self, method: str, kwargs: Mapping[str, str]) -> tuple[int, Any]:
        assert method == "reload_weights"
        if "cannot load" in self.faults:
            return 500, {"error": {"message": "EngineCore encountered an issue"}}
        if "ignores weights" not in self.faults:
            self.load(Path(kwargs["weights_path"]))
        if "other weights" in self.faults:
            with torch.no_grad():
                for parameter in self._loaded.model.parameters():
                    parameter.add_(torch.full_like(parameter, 0.3))
        return 200, {"results": [None]}

    def _fits(self, asked: Mapping[str, Any]) -> bool:
        return self.context is None or len(asked["prompt"]) + asked["max_tokens"] <= self.context

    def _complete(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        assert asked["model"] == MODEL
        prompt, count = asked["prompt"], asked.get("n", 1)
        assert isinstance(prompt, list)
        assert all(isinstance(each, int) for each in prompt), "ids, never text"
        read = [1, *prompt] if "adds a token" in self.faults else prompt
        choices = [self._choice(asked, read, number) for number in range(count)]
        return {
            "object": "text_completion",
            "model": MODEL,
            "choices": choices[: -1 if "too few" in self.faults else None],
        }

    def _choice(self, asked: Mapping[str, Any], prompt: list[int], number: int) -> dict[str, Any]:
        greedy = asked["temperature"] == 0
        rules = SamplingRules(greedy=True) if greedy else SamplingRules(temperature=asked["temperature"])
        seed, place = asked.get("seed", 0) + number, 0
        if "place" in asked:  # a test asks for what the trainer itself would draw
            seed, place = asked["seed"], asked["place"] + number
        stop = tuple(asked.get("stop", ()))
        config = GenerationConfig(rules=rules, max_new_tokens=asked["max_tokens"], seed=seed, stop=stop)
        (drawn,) = continue_prompts(self._loaded, [prompt], config, batch_size=1, indices=[place])
        ids = [*drawn.ids, *([] if drawn.end_id is None else [drawn.end_id])]
        choice: dict[str, Any] = {
            "index": number,
            "text": "a text that nobody is to read",
            "finish_reason": "stop" if drawn.finish in ("eos", "stop") else "length",
            "stop_reason": drawn.end_id,
        }
        if asked.get("return_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": prompt}
        if asked.get("logprobs") is not None:
            temperature = 1.0 if greedy or self._mode == "raw_logprobs" else asked["temperature"]
            values = self._logprobs(prompt, ids, temperature)
            tokens = [f"token_id:{each}" for each in ids]
            choice["logprobs"] = {"token_logprobs": values, "tokens": tokens, "top_logprobs": [], "text_offset": []}
        if asked.get("prompt_logprobs") is not None:
            values = self._logprobs(prompt[:1], prompt[1:], 1.0)
            rows = [
                {str(token): {"logprob": value, "rank": 5, "decoded_token": "?"}}
                for token, value in zip(prompt[1:], values, strict=True)
            ]
            choice["prompt_logprobs"] = [None, *rows]
        return choice

    @torch.no_grad()
    def _logprobs(self, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
        trained = [False] * len(prompt) + [True] * len(ids)
        sample = Sample([*prompt, *ids], trained, "row")
        batch = TokenObjective().collate([[sample]], length=len(sample.ids)).with_index()
        hidden = self._loaded.model(batch)
        values, _ = token_logprobs(self._loaded.model.head, *batch.select_trained(hidden), temperature=temperature)
        return [float(each) for each in values]


class Handler(BaseHTTPRequestHandler):
    """HTTP around it."""

    engine: StandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._reply(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Keep quiet."""

    def _reply(self, content: Any) -> None:
        faults = self.engine.faults
        if "breaks off" in faults:
            faults.discard("breaks off")  # once, as one that is started again
            self.close_connection = True
            return
        if "late" in faults:
            time.sleep(1.5)
        if "locked" in faults and self.headers.get("Authorization") != "Bearer open":
            status, answer = 401, {"error": "Unauthorized"}
        else:
            status, answer = self.engine.answer(self.path, content)
        body = b"" if answer is None else json.dumps(answer).encode()
        if "garbage" in faults and self.path == "/v1/completions":
            body = b"<html>a proxy's own page</html>"
        if "nonsense" in faults and self.path == "/v1/completions":
            body = json.dumps({"choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}]}).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            return  # whoever asked has gone


@contextmanager
def serve(engine: StandIn, port: int = 0) -> Iterator[str]:
    """The address of a server, which stops with the block."""
    handler: type[Handler] = type("Bound", (Handler,), {"engine": engine})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
