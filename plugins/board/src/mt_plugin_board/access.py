"""Who may ask: the names that the server goes by, and a token where it is not this machine alone."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from mt_core import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST_TOKEN = 16
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - named to be refused without a token


class Access:
    """Decides about a request by its headers alone.

    A page elsewhere may let a name of its own lead to this machine (DNS rebinding), so ``Host`` must be a name that the server goes
    by. On all addresses (``0.0.0.0``) it may go by any, and the token decides: a foreign name has no cookie of ours.
    """

    def __init__(self, host: str, token: str | None) -> None:
        """Raises ``UsageError`` for an address of the network without a token, and for a token that can be guessed."""
        self.host = host
        self.token = secrets.token_urlsafe(24) if token == "auto" else token  # noqa: S105 - the word that asks for one
        if self.token is None and not is_loopback(host):
            raise UsageError(
                f"--host {host} shows runs to whoever reaches this machine; add --token auto, or leave out --host and use"
                " a tunnel: ssh -L 8642:127.0.0.1:8642 MACHINE"
            )
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise UsageError(f"--token has {len(self.token)} letters; give {SHORTEST_TOKEN} or more, or --token auto")

    def allows_host(self, header: str | None) -> bool:
        """Return whether a request was meant for this server."""
        if self.host in ANY_ADDRESS:
            return True
        name = host_of(header or "")
        return name in LOOPBACK or name == self.host.lower()

    def allows(self, cookies: str | None, cookie: str) -> bool:
        """Return whether a request has the cookie that the token was given for."""
        if self.token is None:
            return True
        try:
            morsel = SimpleCookie(cookies or "").get(cookie)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), self.cookie_value.encode())

    def is_token(self, given: str) -> bool:
        """Return whether this is the token."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    @property
    def cookie_value(self) -> str:
        """Return the cookie's value: a hash, from which nobody can read the token."""
        return hashlib.sha256(f"mt-board {self.token}".encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the name in a ``Host`` header, without its port; nothing where it is no such header."""
    text = header.strip().lower()
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        port = port.removeprefix(":") if port.startswith(":") else port and "no port"
    else:
        name, _bracket, port = text.partition(":")
    return name if port.isdigit() or not port else ""


def flat(query: Mapping[str, list[str]], name: str) -> str:
    """Return the one value of a parameter; nothing where it is missing."""
    return query.get(name, [""])[0]
