"""The process: a socket, the loop of events, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn

from mt_core import MtError, UsageError

from .app import Service
from .engine import Engine
from .http import Access
from .metrics import Metrics
from .models import Models

CONNECTIONS = 1000
"""At a time; more get 503."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a server takes at most: ``max_tokens`` places of the cache, bodies of ``max_body`` bytes, ``grace`` seconds to end."""

    max_rows: int = 8
    max_queue: int = 256
    max_tokens: int | None = None
    prefill_tokens: int = 512
    max_body: int = 4 * 2**20
    grace: float = 30.0


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a port that is taken is told before a model loads. Raises ``UsageError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
    except (OSError, OverflowError) as error:
        found.close()
        said = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on port {port} of {host}: {said}; give another --port, or --host") from error
    return found


def serve(
    models: Models,
    sock: socket.socket,
    access: Access,
    bounds: Bounds,
    report: Callable[[str], None],
    *,
    ready: Callable[[Callable[[], None]], None],
) -> None:
    """Serve until a signal ends it. Raises ``MtError`` where the model's thread died.

    ``ready`` is called once requests are answered, with a function that any thread may end it with.
    """
    asyncio.run(_serve(models, sock, access, bounds, report, ready))


async def _serve(
    models: Models,
    sock: socket.socket,
    access: Access,
    bounds: Bounds,
    report: Callable[[str], None],
    ready: Callable[[Callable[[], None]], None],
) -> None:
    metrics = Metrics()
    engine = Engine(
        models,
        max_rows=bounds.max_rows,
        max_queue=bounds.max_queue,
        max_tokens=bounds.max_tokens,
        prefill_tokens=bounds.prefill_tokens,
        metrics=metrics,
    )
    service = Service(models, engine, metrics, max_body=bounds.max_body)
    server = _Server(service.app(access, report), bounds.grace)

    def stop() -> None:
        if service.is_draining:
            server.force_exit = True
        service.is_draining = server.should_exit = True

    engine.start(stop)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
            loop.add_signal_handler(number, stop)

    def stop_from_anywhere() -> None:
        with suppress(RuntimeError):  # it has ended already
            loop.call_soon_threadsafe(stop)

    loop.call_soon(ready, stop_from_anywhere)
    try:
        await server.serve([sock])
    finally:
        engine.close(bounds.grace)
        service.close()
    if engine.failure is not None:
        raise MtError(f"the model's thread died: {type(engine.failure).__name__}: {engine.failure}")


class _Server(uvicorn.Server):
    """Uvicorn without its own signals, which would end the process by the signal."""

    def __init__(self, app: object, grace: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="none",
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=int(grace),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to ``serve``."""
        yield
