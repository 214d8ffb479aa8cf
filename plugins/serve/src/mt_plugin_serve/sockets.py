"""The socket on which a server listens. Imports no torch."""

from __future__ import annotations

import socket

from mt_core import UsageError


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a port that is taken is told before a model loads. Raises ``UsageError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # by its protocol asyncio knows a connection whose small pieces are to be sent at once (TCP_NODELAY)
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
    except (OSError, OverflowError) as error:
        found.close()
        said = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on port {port} of {host}: {said}; give another --port, or --host") from error
    return found
