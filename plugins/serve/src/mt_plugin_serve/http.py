"""Requests and answers on the wire: the body of a request, events of an answer, and a client that goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import Access, read_header
from .errors import ApiError
from .fields import show
from .metrics import Metrics

CLIENT_SECONDS = 60
"""A client has so long to send a body, and to take a piece of an answer."""
MOST_DRAINED = 64 * 2**20
"""Bytes of a body that is too large which are read all the same, or a client that still sends would not see the answer."""
CLOSE = {"connection": "close"}
"""Headers of an answer after which the connection ends."""


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


def encode(value: Any) -> bytes:
    """Return JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """Return the body. Raises ``ApiError`` for one that is too large, too late, or not called JSON."""
    kind = read_header(scope, b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json":
        # what a page of another origin may send without being asked is never this
        raise ApiError(f"the content-type has to be application/json, got {show(kind)}", status=415)
    chunks: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(CLIENT_SECONDS):
            while more and size <= max(most, MOST_DRAINED):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
                if size <= most:
                    chunks.append(message.get("body", b""))
    except TimeoutError as error:
        raise ApiError(f"the body did not come within {CLIENT_SECONDS} s", status=408, headers=CLOSE) from error
    if size > most:
        raise ApiError(f"the body has more than {most:,} bytes, the bound of this server", status=413, headers=CLOSE)
    return b"".join(chunks)


async def send_json(send: Send, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    """Answer with an object."""
    await send_bytes(send, encode(value), "application/json", status, headers)


async def send_bytes(
    send: Send, body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Answer with a body."""
    fields = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": _raw(fields)})
    await send({"type": "http.response.body", "body": body})


async def send_events(send: Send, events: AsyncIterator[Any]) -> None:
    """Answer with server-sent events, as they come. The first one decides whether the answer is an error."""
    first = await anext(events)
    fields = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store",
        "x-accel-buffering": "no",
    }
    await send({"type": "http.response.start", "status": 200, "headers": _raw(fields)})
    await _send_event(send, encode(first))
    try:
        async for event in events:
            await _send_event(send, encode(event))
    except ApiError as error:
        await _send_event(send, encode(error.body()))
    await _send_event(send, b"[DONE]")
    await send({"type": "http.response.body", "body": b""})


async def _send_event(send: Send, data: bytes) -> None:
    """Send one event. Raises ``ClientGoneError`` where the client does not take it in time."""
    try:
        async with asyncio.timeout(CLIENT_SECONDS):
            await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
            # The loop has to notice a lost connection: asyncio warns of each further write to one.
            await asyncio.sleep(0)
    except TimeoutError as error:
        raise ClientGoneError from error


async def until_gone(receive: Receive, work: Awaitable[None]) -> None:
    """Do the work as long as the client is there. Raises ``ClientGoneError``; what is given up is cancelled, and has cleaned up by then."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        await task
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)  # what the task raised has gone on already


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Gate:
    """Every request goes through it: who may ask, faults as answers, and the count of answers."""

    def __init__(
        self, app: ASGIApp, access: Access, metrics: Metrics, paths: frozenset[str], report: Callable[[str], None]
    ) -> None:
        self._app, self._access, self._metrics, self._paths, self._report = app, access, metrics, paths, report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._access.check(scope)
            await self._app(scope, receive, watched)
        except ApiError as error:
            await send_json(watched, error.body(), error.status, error.headers)
        except ClientGoneError:
            self._metrics.cancelled += 1
            status = status or 499  # as nginx calls it
        except asyncio.CancelledError:  # the grace is over
            if not status:
                told = ApiError("the server ended before the answer was there; ask again", status=503, headers=CLOSE)
                await send_json(watched, told.body(), told.status, told.headers)
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours: the client gets no traceback, the console its kind
            self._report(f"error: {scope['method']} {scope['path']}: {type(error).__name__}: {error}")
            if not status:
                await send_json(watched, ApiError("the server has a fault", status=500).body(), 500, CLOSE)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.answers[path, status] += 1


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
