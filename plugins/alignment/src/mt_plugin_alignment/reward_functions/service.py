"""A reward that a service gives over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from mt_core import ComponentError, UsageError, first_line

from .base import Answer
from .service_config import HttpConfig

MAX_BYTES = 64 * 2**20
"""Bytes of a response of the service: a number for each of a million answers has less."""
CHUNK_BYTES = 2**16
"""Bytes that are read at once, and at most of a response that says what is wrong."""
MAX_SHOWN = 200
"""Characters of a faulty response that a message has."""
TOO_MANY_REQUESTS, SERVER_ERROR = 429, 500


class HttpReward:
    """Posts answers as JSON, and reads a list of scores."""

    pause = 1.0
    """Seconds before the second try; twice as many before each further one."""

    def __init__(self, config: HttpConfig) -> None:
        self._config, self.weight = config, config.weight
        self._shown = _without_secrets(urlsplit(config.url))
        self._opener = urllib.request.build_opener(_NoRedirection)

    def score(self, answers: Sequence[Answer]) -> list[float | None]:
        """See ``Reward``. Raises ``ComponentError`` for a service that cannot be asked, or says something else than scores."""
        size, headers = self._config.batch_size, self._headers()
        found: list[float | None] = []
        for start in range(0, len(answers), size):
            found += self._ask(answers[start : start + size], headers)
        return found

    def _headers(self) -> dict[str, str]:
        """Return the headers with values of the environment. Raises ``UsageError`` where one is not set."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        for header, variable in self._config.headers_env.items():
            value = os.environ.get(variable)
            if not value:
                raise UsageError(
                    f"--rewards.http.headers-env takes {header} from {variable}, which is not set; export it"
                )
            if not (value.isascii() and value.isprintable()):
                raise UsageError(
                    f"{variable} has characters that no header may have, perhaps the end of a line; set it again"
                )
            headers[header] = value
        return headers

    def _ask(self, answers: Sequence[Answer], headers: Mapping[str, str]) -> list[float | None]:
        asked = {"answers": [_plain(each) for each in answers]}
        content = json.dumps(asked, default=str).encode()  # a table may have times, which are sent as texts
        request = urllib.request.Request(self._config.url, content, dict(headers), method="POST")  # noqa: S310 - http(s) alone
        for tried in range(self._config.retries + 1):
            if tried:
                time.sleep(self.pause * 2 ** (tried - 1))
            try:
                return self._scores(self._post(request), len(answers))
            except urllib.error.HTTPError as error:
                said, again = (
                    self._status(error, headers),
                    error.code == TOO_MANY_REQUESTS or error.code >= SERVER_ERROR,
                )
            except (OSError, http.client.HTTPException) as error:  # not reached, too slow, or hung up
                said, again = f"cannot be asked: {self._cause(error)}", True
            if not again:
                break
        raise ComponentError(f"reward http: {self._shown} {said} (tried {tried + 1} times)")

    def _post(self, request: urllib.request.Request) -> bytes:
        """Return the body of the answer. Raises ``TimeoutError`` for one that is not there in time, however slowly it comes."""
        seconds = self._config.timeout
        end, content = time.monotonic() + seconds, b""
        with self._opener.open(request, timeout=seconds) as response:
            while chunk := response.read1(CHUNK_BYTES):
                content += chunk
                if time.monotonic() > end:
                    raise TimeoutError
                if len(content) > MAX_BYTES:
                    raise ComponentError(f"reward http: {self._shown} answers with more than {MAX_BYTES:,} bytes")
        return content

    def _scores(self, content: bytes, count: int) -> list[float | None]:
        try:
            said = json.loads(content)
        except ValueError as error:  # no UTF-8, or no JSON
            raise self._odd(f"what is no JSON ({first_line(error)})") from error
        scores = said.get("scores") if isinstance(said, dict) else None
        if not isinstance(scores, list) or not all(_is_score(each) for each in scores):
            raise self._odd(repr(str(said)[:MAX_SHOWN]))
        if len(scores) != count:
            raise ComponentError(
                f"reward http: {self._shown} gives {len(scores)} scores for {count} answers; it has to give one for each"
            )
        return scores

    def _odd(self, what: str) -> ComponentError:
        return ComponentError(
            f'reward http: {self._shown} answers with {what}; it has to be {{"scores": [number or null, …]}}'
        )

    def _status(self, error: urllib.error.HTTPError, headers: Mapping[str, str]) -> str:
        """Return what the service says, without the values of headers, which it may repeat."""
        with error:
            body = error.read(CHUNK_BYTES).decode("utf-8", "replace")
        for header in self._config.headers_env:
            body = body.replace(headers[header], "…")
        text = next((line.strip() for line in body.splitlines() if line.strip()), "")[:MAX_SHOWN]
        moved = "; redirections are not followed, name the address that it leads to" if 300 <= error.code < 400 else ""
        return f"says {error.code} {error.reason}{moved}" + (f": {text}" if text else "")

    def _cause(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            return f"no answer within {self._config.timeout:g} seconds"
        return f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: headers with secrets would go along."""

    def redirect_request(self, *arguments: Any) -> None:
        """Return nothing, which makes an ``HTTPError`` of it."""
        return


def _plain(answer: Answer) -> dict[str, Any]:
    prompt = [{name: value for name, value in turn.items() if name != "raw"} for turn in answer.prompt]
    turns = {"turns": list(answer.turns)} if answer.turns else {}
    return {"prompt": prompt, "text": answer.text, "row": dict(answer.row)} | turns


def _is_score(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _without_secrets(url: SplitResult) -> str:
    """Return the address without what may be secret in it."""
    port = "" if url.port is None else f":{url.port}"
    return f"{url.scheme}://{url.hostname}{port}{url.path}"
