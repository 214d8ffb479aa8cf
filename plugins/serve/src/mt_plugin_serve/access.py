"""Access to the server: the names that it answers to, and its key."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import ApiError
from .fields import show

if TYPE_CHECKING:
    from starlette.types import Scope

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine, by which nobody else reaches it."""


@dataclass(frozen=True)
class Access:
    """Rules of access: with a ``key`` whoever has it may ask; ``hosts`` are names that a request may call the server by, none for any."""

    key: str | None = None
    hosts: frozenset[str] = LOOPBACK

    def check(self, scope: Scope) -> None:
        """Raise ``ApiError`` for a request that may not."""
        if self.hosts and _host_name(read_header(scope, b"host")) not in self.hosts:
            raise ApiError(
                f"this server answers to {', '.join(sorted(self.hosts))}, and was called"
                f" {show(read_header(scope, b'host'))}; a page of another site may be behind it",
                status=403,
                code="host_not_allowed",
            )
        if self.key is None or scope["path"] == "/health":
            return
        given = read_header(scope, b"authorization")
        if not secrets.compare_digest(given.encode("latin-1"), f"Bearer {self.key}".encode()):
            raise ApiError(
                "give the key of this server: Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )


def read_header(scope: Scope, name: bytes) -> str:
    """Return a header of a request; empty where it has none of this name."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _host_name(host: str) -> str:
    """Return the name in ``Host``, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
