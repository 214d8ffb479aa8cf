"""The server over HTTP: what of vLLM's protocol is used, and how each fault of it is named.

Completions and models are those of OpenAI (https://docs.vllm.ai/en/latest/serving/online_serving/openai_compatible_server/), with vLLM's
``return_token_ids`` and ``prompt_logprobs``. Weights are reloaded by ``/collective_rpc`` with ``reload_weights`` and ``weights_path``
(https://docs.vllm.ai/en/latest/training/layerwise/), which ``VLLM_SERVER_DEV_MODE=1`` opens, as ``/reset_prefix_cache``.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from mt_core import UsageError, first_line

from .errors import ServerAnswerError, ServerLateError, ServerUnreachableError

KEY = "VLLM_API_KEY"
"""Environment variable of the server's key, as vLLM itself reads it."""
MOST_BYTES = 2**28
"""Longest answer that is read: a request has one prompt."""
LONGEST_WAIT = 30.0
"""Seconds between two attempts to reach it: 1, 2, 4 and so on, up to this."""
SHOWN = 200
"""Characters of an answer that a message shows."""


class Server:
    """One server."""

    def __init__(self, url: str, *, timeout: float) -> None:
        self._url, self._timeout = url.rstrip("/"), timeout

    def models(self) -> list[str]:
        """Return the names of the models that it lists, one at least. Raises ``ServerAnswerError`` for none."""
        found = self._ask("/v1/models")
        try:
            names = [str(each["id"]) for each in found["data"]]
        except (KeyError, TypeError) as error:
            raise self._garbage("/v1/models", found, "a list of models") from error
        if not names:
            raise self._garbage("/v1/models", found, "a list of models")
        return names

    def first_model(self) -> str:
        """Return the name of the first model that it lists. Raises ``ServerAnswerError`` for none."""
        return self.models()[0]

    def complete(self, request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the choices for one prompt. Raises ``ServerAnswerError`` for another number of them than ``n``."""
        found = self._ask("/v1/completions", request)
        choices = found.get("choices") if isinstance(found, dict) else None
        if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
            raise self._garbage("/v1/completions", found, "a list of choices")
        wanted = request.get("n", 1)
        if len(choices) != wanted:
            raise ServerAnswerError(
                f"{self._url} gives {len(choices)} answers to a prompt, and {wanted} were asked for. Look at its log"
            )
        return choices

    def reload(self, folder: Path) -> None:
        """Let all its workers read weights, and forget what it has computed with those before."""
        self._ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        self._ask("/reset_prefix_cache", {})

    def _ask(self, path: str, content: Mapping[str, Any] | None = None) -> Any:
        """Return what it answers, ``None`` for nothing. Raises a ``SamplerError``."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        body = None if content is None else json.dumps(content).encode()
        request = Request(self._url + path, body, headers)  # noqa: S310 - VllmConfig.url begins with http
        try:
            with urlopen(request, timeout=self._timeout) as response:  # noqa: S310
                answer = response.read(MOST_BYTES + 1)
        except HTTPError as error:
            with error:
                raise self._refusal(path, error.code, error.read(MOST_BYTES)) from error
        except TimeoutError as error:
            raise self._late(path) from error
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._late(path) from error
            raise self._unreachable(path, error.reason) from error
        except (http.client.HTTPException, OSError) as error:
            raise self._unreachable(path, error) from error
        return self._read(path, answer)

    def _read(self, path: str, answer: bytes) -> Any:
        if not answer.strip():
            return None
        if len(answer) > MOST_BYTES:
            raise ServerAnswerError(f"{self._url}{path} answers with more than {MOST_BYTES >> 20} MiB")
        try:
            return json.loads(answer)
        except ValueError as error:
            raise self._garbage(path, answer.decode(errors="replace"), "JSON") from error

    def _refusal(self, path: str, code: int, answer: bytes) -> Exception:
        """Return the error of an HTTP status, with what the server says of it."""
        said = f"{self._url}{path}: HTTP {code} {_shorten(answer.decode(errors='replace'))}"
        if code >= 500:
            return ServerUnreachableError(f"{said}. The server failed; look at its log")
        if code in (401, 403):
            return UsageError(f"{said}. Put the server's key into the environment variable {KEY}")
        if code in (404, 405) and not path.startswith("/v1/"):
            return UsageError(f"{said}. Start the server with VLLM_SERVER_DEV_MODE=1, so that it loads weights")
        return ServerAnswerError(f"{said}. The server does not take the request")

    def _late(self, path: str) -> ServerLateError:
        return ServerLateError(
            f"{self._url}{path} has not answered in {self._timeout:g} s. Look at its log, ask less at a time or wait longer"
            " (--sampler.requests, --sampler.timeout; of mt-generate --backend-option timeout=SECONDS)"
        )

    def _unreachable(self, path: str, reason: object) -> ServerUnreachableError:
        words = first_line(reason) if isinstance(reason, Exception) else str(reason)
        return ServerUnreachableError(
            f"{self._url}{path} cannot be reached ({type(reason).__name__}: {words}). Start `vllm serve` there, and go on with --resume"
        )

    def _garbage(self, path: str, found: object, wanted: str) -> ServerAnswerError:
        return ServerAnswerError(
            f"{self._url}{path} answers {_shorten(str(found))!r}, which is not {wanted}. Is it a vLLM server?"
        )


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
