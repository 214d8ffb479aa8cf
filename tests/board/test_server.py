"""Who is answered, with what, and what nobody gets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from board_runs import append, record, served

from mt_core import MtError, UsageError
from mt_plugin_board import server as server_module
from mt_plugin_board.access import Access, host_of
from mt_plugin_board.command import main
from mt_plugin_board.index import Index
from mt_train.checkpoint.retention import Retention
from mt_train.checkpoint.store import CheckpointStore

MakeRun = Callable[..., Path]
TOKEN = "correct-horse-battery"


def test_each_record_comes_once_and_a_connection_that_was_cut_begins_with_everything(make_run: MakeRun) -> None:
    folder = make_run(steps=5)
    with served(folder.parent) as client:
        with client.stream("/live/runs?run=runs/a") as events:
            assert next(events)[1]["data"]["runs"][0]["series"]["loss"]["x"] == [1, 2, 3, 4, 5]
            append(folder / "metrics.jsonl", record(6))
            began = time.monotonic()
            kind, content = next(events)
            assert time.monotonic() - began < 3
            assert kind == "delta"
            assert content["runs"]["0"]["series"]["loss"]["x"] == [6]
        append(folder / "metrics.jsonl", record(7))
        time.sleep(0.4)  # pages that come at once share a look at the disk
        with client.stream("/live/runs?run=runs/a") as events:
            assert next(events)[1]["data"]["runs"][0]["series"]["loss"]["x"] == [1, 2, 3, 4, 5, 6, 7]


def test_the_index_tells_lines_that_change_and_runs_that_come_and_go(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt_plugin_board.index.SCAN_SECONDS", 0.5)
    first = make_run("first", steps=20, completed=True)
    with served(first.parent) as client, client.stream("/live/index") as events:
        kind, content = next(events)
        (row,) = content["rows"]
        assert (kind, row["name"], row["state"], row["step"]) == ("snapshot", "first", "completed", 20)
        make_run("second", steps=3, about={"ended": {"reason": "failed", "step": 3, "error": "out of memory"}})
        rows = {"first": row}
        while "second" not in rows or rows["first"].get("best") is None:
            rows |= {row["name"]: row for row in next(events)[1]["rows"]}
        assert (rows["second"]["state"], rows["second"]["reason"]) == ("failed", "out of memory")
        assert rows["first"]["best"] == [20, 1.8]
        first.rename(first.parent.parent / "first")
        while (content := next(events)[1])["gone"] != ["runs/first"]:
            pass


def test_the_command_to_copy_goes_on_from_a_checkpoint_or_runs_the_config_again(make_run: MakeRun) -> None:
    folder = make_run(steps=5)
    with served(folder.parent) as client, client.stream("/live/runs?run=runs/a") as events:
        assert next(events)[1]["command"] == f"mt-train --config {folder}/run.yaml"
        CheckpointStore(folder).save(5, write=lambda staging: [], manifest={}, keep=Retention(last=1))
        assert next(events)[1]["command"] == f"mt-train --resume {folder}"


def test_fifty_pages_at_once_all_get_what_is_new(make_run: MakeRun) -> None:
    folder = make_run(steps=5)
    found: list[list[int]] = []
    with served(folder.parent) as client:
        ready = threading.Barrier(51, timeout=30)

        def read() -> None:
            with client.stream("/live/runs?run=runs/a") as events:
                next(events)
                ready.wait()
                found.append(next(events)[1]["runs"]["0"]["series"]["loss"]["x"])

        threads = [threading.Thread(target=read) for _ in range(50)]
        for thread in threads:
            thread.start()
        ready.wait()
        append(folder / "metrics.jsonl", record(6))
        for thread in threads:
            thread.join(30)
    assert found == [[6]] * 50


def test_nothing_is_written_where_runs_are(make_run: MakeRun) -> None:
    folder = make_run(steps=30)

    def tree() -> list[tuple[str, int, int]]:
        paths = [folder.parent, *folder.parent.rglob("*")]
        return sorted((str(path), path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths)

    before = tree()
    with served(folder.parent) as client:
        for path in ("/live/index", "/live/runs?run=runs/a"):
            with client.stream(path) as events:
                next(events)
    assert tree() == before


def test_more_pages_than_there_is_room_for_are_told_so(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_STREAMS", 1)
    with served(make_run().parent) as client, client.stream("/live/index") as events:
        next(events)
        status, _, text = client.get("/live/index")
        assert (status, "close some" in text) == (503, True)


def test_a_foreign_host_gets_nothing(make_run: MakeRun) -> None:
    names = [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::2]",
        "10.0.0.1",
        "",
        "127.0.0.1@evil",
        "127.0.0.1:x",
        "evil:80",
    ]
    with served(make_run().parent) as client:
        for name in names:
            for path in ("/", "/live/index", "/live/runs?run=runs/a"):
                status, _, text = client.get(path, Host=name)
                assert status == 403, (name, path)
                assert "runs/a" not in text
        for name in ("127.0.0.1", "localhost", f"localhost:{client.server.port}", "[::1]:80", "LOCALHOST"):
            assert client.get("/", Host=name)[0] == 200, name


def test_paths_lead_to_three_pages_and_nowhere_else(make_run: MakeRun, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    folder = make_run()
    (folder.parent / "link").symlink_to(tmp_path)
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").symlink_to(secret)
    (folder / "samples.jsonl").symlink_to(secret)
    ways = [
        "../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "....//secret",
        "/etc/passwd",
        "runs/../../secret",
        "runs/a/run.yaml",
        "a%00",
        "runs/link",
        "\\..\\secret",
    ]
    paths = [f"/{way.lstrip('/')}" for way in ways] + [f"/live/runs?run={way}" for way in ways]
    paths += [f"/live/search?search={quote(way)}" for way in ways] + [
        "//evil.example/",
        "/runs/",
        "/live/",
        "/live/runs",
        "/live/index/..",
        "/assets/board.js",
        "/favicon.ico",
    ]
    with served(folder.parent) as client:
        for path in paths:
            status, _, text = client.get(path)
            assert status in (400, 404), path
            assert "the secret" not in text
            assert "root:" not in text
        with client.stream("/live/runs?run=runs/a&log=..%2F..%2Fsecret") as events:
            assert "the secret" not in json.dumps(next(events))


def test_answers_forbid_to_be_kept_framed_or_read_elsewhere(make_run: MakeRun) -> None:
    with served(make_run().parent) as client:
        for path in ("/", "/runs?run=runs/a", "/nothing"):
            _, headers, _ = client.get(path)
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert "Access-Control-Allow-Origin" not in headers
        page = client.get("/")[2]
        assert "default-src 'none'; style-src 'sha256-" in page
        assert "connect-src 'self'" in page
        assert "unsafe" not in page.partition("</head>")[0].partition("<style>")[0]


def test_what_is_no_reading_request_is_refused_in_a_word(make_run: MakeRun) -> None:
    with served(make_run().parent) as client:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "<script>"):
            status, _, text = client.get("/", method=method)
            assert status == 501, method
            assert "<" not in text
        assert client.get("/", method="HEAD")[2] == ""
        assert client.get("/", **{"X-Long": "x" * 70_000})[0] == 431
        assert client.get("/", **{f"X-{number}": "x" for number in range(200)})[0] == 431
        assert client.get("/?" + "a=b&" * 100)[0] == 400
        assert client.get("/" + "a" * 70_000)[0] == 414
        with socket.create_connection(("127.0.0.1", client.server.port), timeout=10) as raw:
            raw.sendall(b"\x16\x03\x01 no http\r\n\r\n")
            assert b"Traceback" not in raw.recv(4096)


def test_small_news_are_sent_at_once(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the kernel keeps a second piece back until the browser has acknowledged the first, up to 40 ms later."""
    seen: list[int] = []
    answer = server_module.Handler.do_GET

    def watched(handler: server_module.Handler) -> None:
        seen.append(handler.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        answer(handler)

    monkeypatch.setattr(server_module.Handler, "do_GET", watched)
    with served(make_run().parent) as client:
        client.get("/")
    assert len(seen) == 1
    assert seen[0]


def test_a_token_is_in_the_link_once_and_then_a_cookie(make_run: MakeRun) -> None:
    with served(make_run().parent, token=TOKEN) as client:
        assert f"?token={TOKEN}" in client.server.link
        for path in ("/", "/live/index", "/?token=", "/?token=wrong", f"/live/index?token={TOKEN}"):
            assert client.get(path)[0] == 401, path
        status, headers, _ = client.get(f"/runs?run=runs/a&token={TOKEN}&x=tokens")
        assert (status, headers["Location"]) == (303, "/runs?run=runs%2Fa&x=tokens")
        cookie, *flags = headers["Set-Cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(flags)
        assert TOKEN not in cookie
        assert client.get("/", Cookie=cookie)[0] == 200
        assert client.get("/", Cookie=cookie[:-1] + "x")[0] == 401
        with client.stream("/live/index", Cookie=f"other=1; {cookie}") as events:
            assert next(events)[0] == "snapshot"


def test_another_address_needs_a_token_and_one_that_cannot_be_guessed() -> None:
    with pytest.raises(
        UsageError, match=r"--host 0\.0\.0\.0 shows runs to whoever reaches this machine; add --token auto"
    ):
        Access("0.0.0.0", None)
    with pytest.raises(UsageError, match="--token has 5 letters; give 16 or more"):
        Access("127.0.0.1", "short")
    assert len(Access("0.0.0.0", "auto").token or "") >= 32
    assert Access("0.0.0.0", "auto").token != Access("0.0.0.0", "auto").token
    assert Access("127.0.0.7", None).allows_host("127.0.0.7:80")
    assert [host_of(text) for text in ("A:80", "[::1]:80", "a:b", "[::1]x", "::1")] == ["a", "::1", "", "", ""]


def test_a_taken_port_is_one_message(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run()
    with served(folder.parent) as client:
        port = client.server.port
        with pytest.raises(MtError, match="Address already in use; choose another --port"):
            server_module.Server(Index([folder]), Access("127.0.0.1", None), port)
        assert main([str(folder), "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 cannot be opened" in said
    assert "Traceback" not in said
    assert main(["nowhere"]) == 2
    assert "nowhere does not exist; give folders of runs" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc").exists(), reason="signals of Linux")
def test_a_signal_ends_it_with_0_while_pages_are_open(make_run: MakeRun) -> None:
    folder = make_run(steps=5)
    for number in (signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-m", "mt_plugin_board.command", str(folder), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            address = process.stdout.readline().split()[0]
            port = int(address.rstrip("/").rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
                raw.sendall(b"GET /live/index HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert b"event-stream" in raw.recv(4096)
                os.kill(process.pid, number)
                assert process.wait(10) == 0
            assert process.stderr.read() == ""
