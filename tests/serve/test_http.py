"""The wire: who may ask, bounds, clients that leave or dawdle, and what is no HTTP at all."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from served import Server, model_of, running, scripted

from mt_plugin_serve import http
from mt_plugin_serve.access import Access
from mt_train import LoadedModel

NO_END = {"257": -100}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def raw(server: Server, sent: bytes, *, seconds: float = 5) -> bytes:
    """What comes back for bytes, until the server closes or says no more."""
    found = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                found += chunk
        except OSError:  # closed in between, or silent
            pass
    return found


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]", "localhost.evil"]
)
def test_a_page_of_another_site_is_not_answered(server: Server, host: str) -> None:
    status, answer, headers = server.ask("GET", "/v1/models", Host=host)
    assert (status, answer["error"]["code"]) == (403, "host_not_allowed")
    assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:80"])
def test_own_names_are_answered(server: Server, host: str) -> None:
    assert server.ask("GET", "/v1/models", Host=host)[0] == 200


def test_other_origins_get_no_leave(server: Server) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    status, _, headers = server.ask("OPTIONS", "/v1/completions", **asked)
    assert status == 405
    assert not [name for name in headers if name.lower().startswith("access-control")]
    # what a page may send without being asked is never JSON by its name
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert server.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "x"}, Content_Type=kind)[0] == 415


def test_a_key_is_asked_for_everywhere_but_at_health(loaded: LoadedModel) -> None:
    with running(model_of(loaded), Access("s3cret-é", frozenset())) as server:
        key = "Bearer s3cret-é".encode().decode("latin-1")
        for path in ("/v1/models", "/metrics", "/tokenize"):
            for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": "s3cret"}, {"Authorization": ""}):
                status, answer, _ = server.ask("GET", path, **given)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert server.ask("GET", "/health", Host="any.example")[0] == 200
        assert server.ask("GET", "/v1/models", Authorization=key, Host="any.example")[0] == 200
        assert server.ask("GET", "/v1/nothing", Authorization="Bearer x")[0] == 401, "what there is is not told either"


def test_paths_and_methods_that_are_not_there(server: Server) -> None:
    for method, path, expected in [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/v1/models/%2e%2e%2fetc", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ]:
        status, answer, _ = server.ask(method, path)
        assert (status, list(answer)) == (expected, ["error"]), path


def test_a_body_that_is_too_large_is_refused(loaded: LoadedModel) -> None:
    with running(model_of(loaded), max_body_mib=10_000 / 2**20) as server:
        for size, expected in ((9_000, 400), (10**7, 413)):
            status, answer, _ = server.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "x" * size})
            assert status == expected, answer
        assert server.ask("GET", "/health")[0] == 200
        chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        chunked += b"Transfer-Encoding: chunked\r\n\r\n" + (b"2000\r\n" + b"x" * 0x2000 + b"\r\n") * 4 + b"0\r\n\r\n"
        assert raw(server, chunked).startswith(b"HTTP/1.1 413 ")


def request(fields: dict[str, Any]) -> bytes:
    body = json.dumps({"model": "tiny", **fields}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_a_full_queue_says_when_to_come_back() -> None:
    with running(model_of(scripted("x" * 4000, 1, delay=0.005)), max_rows=1, max_queue=2) as server:
        status, answer, _ = server.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "x", "n": 4})
        assert (status, answer["error"]["param"]) == (400, "n"), "which would never fit"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(request({"prompt": "x", "max_tokens": 3000, "n": 3}))
            until(lambda: server.figure("waiting_texts") == 2)
            status, answer, headers = server.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "x"})
            assert (status, answer["error"]["code"]) == (429, "queue_full")
            assert int(headers["retry-after"]) >= 1
        until(lambda: server.figure("waiting_texts") == 0)
        server.complete(prompt="x", max_tokens=3)  # there is room again


def test_a_request_for_more_texts_than_fit_is_refused_before_it_is_read(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,048 prompts with 128 texts each are a minute of work for the thread that reads prompts, which others wait for."""

    def refuse(*_: Any) -> list[int]:
        raise AssertionError("a prompt is tokenized")

    with running(model_of(loaded), max_rows=2, max_queue=6) as server:
        for fields, count in [
            ({"prompt": ["a"] * 2048, "n": 128}, "262,144"),
            ({"prompt": ["a"] * 5, "echo": True, "logprobs": 1}, "10"),
            ({"prompt": ["a"] * 9, "echo": True, "max_tokens": 0}, "9"),
        ]:
            with monkeypatch.context() as patched:
                patched.setattr("mt_plugin_serve.completions.text_ids", refuse)
                asked = {"model": "tiny", "max_tokens": 1, **fields}
                status, answer, _ = server.ask("POST", "/v1/completions", asked)
            assert (status, answer["error"]["param"]) == (400, "n"), answer
            assert f"{count} texts are asked for at once, and this server takes 8" in answer["error"]["message"]
        messages = [{"role": "user", "content": "x"}]
        status, answer, _ = server.ask("POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, "n": 9})
        assert (status, answer["error"]["param"]) == (400, "n"), answer
        server.complete(prompt=["a"] * 4, echo=True, logprobs=1, max_tokens=1)
        server.complete(prompt=["a"] * 8, echo=True, logprobs=1, max_tokens=0)


@pytest.mark.parametrize("streamed", [True, False])
def test_who_leaves_frees_the_row_within_two_steps(streamed: bool) -> None:
    """Whole answers and streams alike: the figures show it. A step takes so long that all else takes none."""
    with running(model_of(scripted("x" * 4000, 1, delay=0.2)), max_rows=2) as server:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(request({"prompt": "x", "max_tokens": 4000, "stream": streamed}))
        until(lambda: server.figure("steps_total") >= 2)
        before = server.figure("steps_total")
        connection.close()
        until(lambda: server.figure("running_texts") == 0)
        assert server.figure("steps_total") <= before + 2
        assert server.figure("cache_places") == 0
        assert server.figure("cancelled_total") == 1
        status = 200 if streamed else 499  # a stream had begun
        text = server.ask("GET", "/metrics")[1]
        assert f'requests_total{{path="/v1/completions",status="{status}"}} 1' in text


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_bytes_that_are_no_http_stop_nothing(server: Server) -> None:
    chance = random.Random(5)
    good = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    for number in range(60):
        damaged = bytearray(good)
        for _ in range(chance.randrange(1, 8)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        sent = [bytes(damaged), chance.randbytes(200), good[: chance.randrange(len(good))]][number % 3]
        assert b"Traceback" not in raw(server, sent, seconds=0.3)
    huge = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"
    said = raw(server, huge)  # nothing where closing with bytes unread resets the connection
    assert not said or b" 400 " in said[:20]
    assert b" 200 " in raw(server, HEALTH)[:20]


def test_a_hundred_connections_and_slow_ones_delay_nobody(server: Server) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for number, connection in enumerate(idle):
        connection.sendall(HEALTH[: number % len(HEALTH)])  # headers that never end
    began = time.monotonic()
    assert server.complete(prompt="x", max_tokens=3)["usage"]["completion_tokens"] == 3
    assert time.monotonic() - began < 2
    for connection in idle:
        connection.close()


def test_a_reader_that_takes_nothing_holds_up_nobody(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.sendall(request({"prompt": "x", "max_tokens": 100, "stream": True, "n": 8}))
        assert server.complete(prompt="x", max_tokens=3)["usage"]["completion_tokens"] == 3
    until(lambda: server.figure("running_texts") == 0)


def test_a_body_that_does_not_come_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CLIENT_SECONDS", 0.2)
    whole = request({"prompt": "x" * 100})
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(whole[:-50])
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_who_takes_no_piece_of_a_stream_in_time_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CLIENT_SECONDS", 0.1)
    sent, closed = [], []

    async def events() -> AsyncIterator[dict[str, int]]:
        try:
            for number in range(9):
                yield {"number": number}
        finally:
            closed.append(True)

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:  # head, first event, and nothing after it
            await asyncio.sleep(30)

    async def never() -> Any:
        await asyncio.sleep(30)

    with pytest.raises(http.ClientGoneError):
        asyncio.run(http.until_gone(never, http.send_events(send, events())))
    assert len(sent) == 3
    assert closed == [True]


def test_a_lost_connection_is_noticed_before_the_next_piece_is_written() -> None:
    """Pieces that were there at once were all written to it, and asyncio warned on the console of each from the sixth on."""
    order: list[str] = []

    async def events() -> AsyncIterator[dict[str, Any]]:
        for number in range(3):
            yield {"piece": number}

    async def send(message: Any) -> None:
        if message.get("body"):
            order.append("written")
            asyncio.get_running_loop().call_soon(order.append, "noticed")  # as a transport does once a write fails

    asyncio.run(http.send_events(send, events()))
    assert order[:4] == ["written", "noticed", "written", "noticed"]


def test_metrics_are_prometheus_text(server: Server) -> None:
    server.complete(prompt="x", max_tokens=3)
    parser = pytest.importorskip("prometheus_client.parser")
    families = {each.name: each for each in parser.text_string_to_metric_families(server.ask("GET", "/metrics")[1])}
    assert families["mt_serve_first_token_seconds"].type == "histogram"
    assert families["mt_serve_new_tokens"].samples[0].value >= 3
    buckets = [each.value for each in families["mt_serve_first_token_seconds"].samples if each.name.endswith("_bucket")]
    assert buckets == sorted(buckets)


def test_the_end_lets_what_runs_finish_and_refuses_what_comes(loaded: LoadedModel) -> None:
    with running(model_of(loaded), grace=10) as server, ThreadPoolExecutor(2) as pool:
        running_text = pool.submit(server.complete, prompt="x", max_tokens=100, n=4, logit_bias=NO_END)
        until(lambda: server.figure("running_texts") == 4)
        with socket.create_connection(("127.0.0.1", server.port)) as kept:
            kept.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n")  # a request that is on its way
            server.stop()
            time.sleep(0.15)
            kept.sendall(b"\r\n")
            assert running_text.result()["usage"]["completion_tokens"] == 400
        with pytest.raises(ConnectionError):
            server.ask("GET", "/health")


def test_what_still_runs_after_the_grace_is_cut_off() -> None:
    with running(model_of(scripted("x" * 4000, 1, delay=0.01)), grace=1) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, "POST", "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 4000})
        until(lambda: server.figure("running_texts") == 1)
        began = time.monotonic()
        server.stop()
        status, answer, _ = asked.result()
        assert (status, answer["error"]["type"]) == (503, "server_error")
        assert time.monotonic() - began < 10, "and not the forty seconds of its tokens"


def test_a_server_ends_after_the_thread_of_its_model() -> None:
    """Python aborts at its end where a thread is inside torch: the exit code was -6."""
    others = {*threading.enumerate()}
    with running(model_of(scripted("x" * 4000, 1, delay=0.5)), grace=0) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, "POST", "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 4000})
        until(lambda: server.figure("running_texts") == 1)
        server.stop()
        assert asked.result()[0] == 503
    assert [each.name for each in threading.enumerate() if each not in others and each.name == "model"] == []


def test_a_dead_model_is_told_to_all_and_ends_the_server() -> None:
    models = model_of(scripted("x" * 4000, 1, delay=0.002))
    with running(models, dies=True) as server, ThreadPoolExecutor(4) as pool:
        asked = {"model": "tiny", "prompt": "x", "max_tokens": 4000}
        waiting = [pool.submit(server.ask, "POST", "/v1/completions", asked) for _ in range(3)]
        until(lambda: server.figure("running_texts") == 3)
        models.default.loaded.model.head = None  # type: ignore[assignment]
        for each in waiting:
            status, answer, _ = each.result()
            assert (status, answer["error"]["type"]) == (503, "server_error")
        until(lambda: server.error is not None)
        said = str(server.error)  # the kind of error is another one where the head is looked at before it is called
        assert "the model's thread died: " in said
        assert "'NoneType' object" in said


def test_a_text_that_cannot_go_on_is_told_and_hurts_no_other() -> None:
    loaded = scripted("abZc", 1)
    loaded.model.head.register_forward_hook(
        lambda head, given, said: torch.where(given[0][..., ord("Z")] == 1, torch.nan, 1.0)[:, None] * said
    )
    with running(model_of(loaded)) as server, ThreadPoolExecutor(2) as pool:
        body = {"model": "tiny", "prompt": "x", "temperature": 0}
        found = list(pool.map(lambda most: server.ask("POST", "/v1/completions", {**body, "max_tokens": most}), [2, 9]))
        assert (found[0][0], found[0][1]["choices"][0]["text"]) == (200, "ab")
        assert found[1][0] == 500
        assert "not finite numbers" in found[1][1]["error"]["message"]
        streamed = server.ask("POST", "/v1/completions", {**body, "stream": True})[1]
        assert '"text":"a"' in streamed
        assert "not finite numbers" in streamed
        assert streamed.endswith("data: [DONE]\n\n")
