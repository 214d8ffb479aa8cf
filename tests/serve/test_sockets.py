"""The socket of a server."""

from __future__ import annotations

import asyncio
import socket

import pytest

from mt_core import UsageError
from mt_plugin_serve.sockets import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_small_piece_of_a_stream_is_sent_at_once(host: str) -> None:
    """Else the kernel keeps the first token back until the client has acknowledged the begin of the answer, up to 40 ms later."""
    try:
        sock = listen(host, 0)
    except UsageError as error:
        pytest.skip(f"no {host} here: {error}")

    async def connect() -> int:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), sock=sock)
        async with server:
            _, client = await asyncio.open_connection(*sock.getsockname()[:2])
            writer = await accepted.get()
            found: int = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            client.close()
            writer.close()
        return found

    assert asyncio.run(connect())
