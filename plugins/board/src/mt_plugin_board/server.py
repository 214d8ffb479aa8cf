"""The server: three pages, and a stream of what changes for each. It writes nothing, and serves no file."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from mt_core import MtError, notice
from mt_tools.report import CONFIG

from .access import Access, flat
from .index import Index, UnknownRunError
from .pages import page
from .reader import RunReader
from .searches import read_search, stamp
from .tail import Tail
from .view import RunsView

TICK_SECONDS = 0.5
ALIVE_SECONDS = 15.0
"""Time after which a stream without news gets an empty line, so that one that nobody reads ends."""
PATIENCE_SECONDS = 30
"""Time in which a client sends its request, and takes what it is sent."""
MOST_STREAMS = 128
LOG_BYTES = 128 * 2**10
"""Bytes at the end of a log that the page begins with."""
PAGES = {"/": "index", "/runs": "runs", "/search": "search"}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Query = dict[str, list[str]]
Messages = Iterator[tuple[str, Any] | None]
"""Names and contents of events; ``None`` where there is no news in a tick."""


class Server(ThreadingHTTPServer):
    """Serves an index of runs."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, index: Index, access: Access, port: int) -> None:
        """Raises ``MtError`` where the port is taken or not ours."""
        self.index, self.access = index, access
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.ended = threading.Event()
        self.address_family = AF_INET6 if ":" in access.host else AF_INET
        try:
            super().__init__((access.host, port), Handler)
        except OSError as error:
            raise MtError(
                f"port {port} of {access.host} cannot be opened: {error.strerror}; choose another --port (0: a free one)"
            ) from error

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @property
    def link(self) -> str:
        """The address for a browser, with the token."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.access.host, self.access.host)  # noqa: S104
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        token = f"?{urlencode({'token': self.access.token})}" if self.access.token else ""
        return f"http://{host}:{self.port}/{token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong here, and nothing of a client that left."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            notice(f"warning: a page could not be shown: {type(error).__name__}: {error}")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "mt-board", ""
    timeout = PATIENCE_SECONDS
    disable_nagle_algorithm = True
    """News are small, and sent at once."""

    def do_GET(self) -> None:
        """Answer, or refuse."""
        try:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, max_num_fields=64)
        except ValueError:
            return self._refuse(HTTPStatus.BAD_REQUEST, "the address cannot be read")
        if not self.server.access.allows_host(self.headers.get("Host")):
            return self._refuse(
                HTTPStatus.FORBIDDEN, "this server goes by another name; use the link that mt-board has shown"
            )
        if not self._has_access(parts.path, query):
            return None
        if parts.path in PAGES:
            return self._send(page(PAGES[parts.path]), "text/html; charset=utf-8", policy=False)
        streams: dict[str, Callable[[Query], Messages]] = {
            "/live/index": self._index_news,
            "/live/runs": self._runs_news,
            "/live/search": self._search_news,
        }
        if parts.path in streams:
            return self._stream(streams[parts.path], query)
        return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page; / has all runs")

    do_HEAD = do_GET

    def _has_access(self, path: str, query: Query) -> bool:
        """Return whether to go on: a link with the token becomes one without, and a cookie."""
        access, cookie = self.server.access, f"mt_board_{self.server.port}"
        if access.token and access.is_token(flat(query, "token")) and path in PAGES:
            rest = urlencode({key: values for key, values in query.items() if key != "token"}, doseq=True)
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", path + (f"?{rest}" if rest else ""))
            self.send_header("Set-Cookie", f"{cookie}={access.cookie_value}; Path=/; HttpOnly; SameSite=Strict")
            self._end(b"", "text/plain; charset=utf-8")
            return False
        if access.allows(self.headers.get("Cookie"), cookie):
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "this page needs the link with its token, which mt-board has shown")
        return False

    # ------------------------------------------------------------------------------------------------------ streams

    def _stream(self, open_news: Callable[[Query], Messages], query: Query) -> None:
        """Send events until the client leaves or the server ends; the first one is everything."""
        try:
            news = open_news(query)
            first = next(news)
        except UnknownRunError as error:
            return self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except (OSError, MtError) as error:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        if not self.server.streams.acquire(blocking=False):
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_STREAMS} pages are open already; close some")
        self.close_connection = True
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Connection", "close")
            self._common_headers()
            self.end_headers()
            if self.command != "HEAD":
                self._send_events(first, news)
        except (OSError, StopIteration):
            return None  # the client has left
        finally:
            self.server.streams.release()
        return None

    def _send_events(self, first: tuple[str, Any] | None, news: Messages) -> None:
        self.wfile.write(b"retry: 1000\n\n")
        message, spoke = first, time.monotonic()
        while True:
            if message is not None:
                name, content = message
                text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
                self.wfile.write(f"event: {name}\ndata: {text}\n\n".encode("utf-8", errors="replace"))
                spoke = time.monotonic()
            elif time.monotonic() - spoke > ALIVE_SECONDS:
                self.wfile.write(b": still here\n\n")
                spoke = time.monotonic()
            if self.server.ended.wait(TICK_SECONDS):
                return
            message = next(news)

    def _index_news(self, query: Query) -> Messages:
        version, content = self.server.index.rows_since(-1)
        yield "snapshot", dict(content) | {"title": self.server.index.title}
        while True:
            version, content = self.server.index.rows_since(version)
            yield ("delta", content) if content else None

    def _runs_news(self, query: Query) -> Messages:
        readers = self.server.index.readers(query.get("run", []))
        view, alone = RunsView(readers), len(readers) == 1
        folder = readers[0].folder
        log = LogNews(Tail(folder / "logs", (), last_bytes=LOG_BYTES), flat(query, "log")) if alone else None
        shown = ""
        while True:
            message = view.next_message()
            is_whole = message is not None and message[0] == "snapshot"
            name, content = message or ("delta", {})
            command = command_of(readers[0]) if alone else ""
            content |= {} if log is None else log.news(anew=is_whole)
            content |= {"command": command} if is_whole or command != shown else {}
            shown = command
            yield (name, content) if content else None

    def _search_news(self, query: Query) -> Messages:
        identifier = flat(query, "search")
        folder = self.server.index.search(identifier)
        known: object = self
        while True:
            now = stamp(folder)
            yield ("snapshot", read_search(folder, identifier)) if now != known else None
            known = now

    # ------------------------------------------------------------------------------------------------------ answers

    def _send(self, content: bytes, kind: str, *, policy: bool = True) -> None:
        self.send_response(HTTPStatus.OK)
        self._end(content, kind, policy=policy)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Connection", "close")
        self._end(f"{text}\n".encode("utf-8", errors="replace"), "text/plain; charset=utf-8")

    def _end(self, content: bytes, kind: str, *, policy: bool = True) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self._common_headers(policy=policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _common_headers(self, *, policy: bool = True) -> None:
        for name, value in HEADERS.items():
            if policy or name != "Content-Security-Policy":  # a page has its own, with hashes
                self.send_header(name, value)
        if not policy:
            self.send_header("Content-Security-Policy", "frame-ancestors 'none'")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request that we know: in plain words, without what was sent."""
        self._refuse(HTTPStatus(code), HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: addresses may hold a token."""


def command_of(reader: RunReader) -> str:
    """Return the command that goes on with a run, or runs its config again where nothing was saved."""
    if reader.run is None or not reader.run.checkpoints:
        return f"mt-train --config {shlex.quote(str(reader.folder / CONFIG))}"
    return f"mt-train --resume {shlex.quote(str(reader.folder))}"


class LogNews:
    """The end of one rank's log, and what comes to it; which logs there are."""

    def __init__(self, tail: Tail, wanted: str) -> None:
        self._tail, self._wanted = tail, wanted
        self._names: list[str] = []
        self._is_first = True

    def news(self, *, anew: bool) -> dict[str, Any]:
        """Return lines that are new; with ``anew`` also the names of the logs. A folder without logs has none."""
        content: dict[str, Any] = {"log_anew": True} if self._is_first else {}
        self._is_first = False
        try:
            if self._tail.folder.is_symlink():
                return {}
            names = sorted(
                (path.name for path in self._tail.folder.glob("rank-*.log")), key=lambda name: (len(name), name)
            )
            if names and (anew or names != self._names):
                self._names = names
                content["logs"] = names[:1024]
            if names and not self._tail.names:
                self._tail.names = [self._wanted if self._wanted in names else names[0]]
            for change in self._tail.changes():
                content |= {"log": content.get("log", []) + list(change.lines)}
                content |= {"log_anew": True} if change.is_anew else {}
        except OSError:
            return content
        return content
