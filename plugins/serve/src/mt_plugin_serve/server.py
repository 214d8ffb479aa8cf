"""The process of a server: its event loop, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn

from mt_core import MtError

from .access import Access
from .app import Service
from .engine import Engine
from .limits import Limits
from .metrics import Metrics
from .models import Models

CONNECTIONS = 1000
"""Connections at a time; more get 503."""


def serve(
    models: Models,
    sock: socket.socket,
    *,
    limits: Limits,
    access: Access,
    report: Callable[[str], None],
    ready: Callable[[Callable[[], None]], None],
) -> None:
    """Serve until a signal ends it. Raises ``MtError`` where the model's thread died.

    ``report`` gets what the console is to show. ``ready`` is called once requests are answered, with a function that any thread may
    end the server with.
    """
    models, metrics = models.within(limits), Metrics()
    engine = Engine(models, limits, metrics)
    service = Service(models, engine, metrics, limits)
    server = _Server(service.app(access, report), limits.grace)
    asyncio.run(_Process(engine, service, server).run(sock, ready))
    if engine.failure is not None:
        raise MtError(f"the model's thread died: {type(engine.failure).__name__}: {engine.failure}")


@dataclass(frozen=True)
class _Process:
    """The parts that begin and end together."""

    engine: Engine
    service: Service
    server: _Server

    async def run(self, sock: socket.socket, ready: Callable[[Callable[[], None]], None]) -> None:
        """Serve on a socket until ``stop``, and then as long as the server's grace lasts, and a forward that runs."""
        self.engine.start(self.stop)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
                loop.add_signal_handler(number, self.stop)

        def stop_from_anywhere() -> None:
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(self.stop)

        loop.call_soon(ready, stop_from_anywhere)
        try:
            await self.server.serve([sock])
        finally:
            self.engine.close()
            self.service.close()

    def stop(self) -> None:
        """Let what runs finish, and take nothing new; the second time, end at once."""
        if self.service.is_draining:
            self.server.force_exit = True
        self.service.is_draining = self.server.should_exit = True


class _Server(uvicorn.Server):
    """Uvicorn without its own signals, which would end the process by the signal."""

    def __init__(self, app: object, grace: int) -> None:
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
                timeout_graceful_shutdown=grace,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to ``serve``."""
        yield
