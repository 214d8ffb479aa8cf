"""The reward ``http`` against a service on this machine: what is sent, what may come back, and what must not be said."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))

from one_rank import OneRank

from mt_conformance import BaseRewardConformance
from mt_core import ComponentError, UsageError
from mt_plugin_alignment import Answer, plugin
from mt_plugin_alignment.reward_functions.service import HttpReward
from mt_plugin_alignment.reward_functions.service_config import HttpConfig
from mt_plugin_alignment.scores import ScoreOptions, score_answers

SECRET = "Bearer very-secret-7f3a9"
Reply = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """Keeps what it is asked, and replies as the test says."""

    server: Service

    def do_POST(self) -> None:
        """Reply."""
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(content)
        self.server.headers.append(dict(self.headers))
        self.server.reply(self, content)

    def say(self, body: Any, status: int = 200, **headers: str) -> None:
        """Write an answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *told: Any) -> None:
        """Say nothing."""


class Service(ThreadingHTTPServer):
    """A service on a free port."""

    daemon_threads = True
    reply: Reply

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        """Address."""
        return f"http://127.0.0.1:{self.server_port}/score"


def lengths(handler: Handler, content: dict[str, Any]) -> None:
    """Score each answer by its length; none for an empty one."""
    handler.say({"scores": [len(each["text"]) or None for each in content["answers"]]})


@pytest.fixture
def service() -> Iterator[Service]:
    served = Service()
    served.reply = lengths
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpReward, "pause", 0.01)


def answers(*texts: str) -> list[Answer]:
    turn = {"role": "user", "content": "go", "raw": True}
    return [Answer(text, [1], "eos", {"id": "row 1", "gold": 3}, 0, [turn]) for text in texts]


def reward(service: Service, **options: Any) -> HttpReward:
    return HttpReward(HttpConfig(url=service.url, **options))


def test_answers_are_posted_in_batches_and_scores_come_back_in_their_order(service: Service) -> None:
    found = reward(service, batch_size=2).score(answers("aaa", "", "a", "aa", "\ud800é"))
    assert found == [3, None, 1, 2, 2]
    assert [len(each["answers"]) for each in service.asked] == [2, 2, 1]
    assert service.asked[0]["answers"][0] == {
        "prompt": [{"role": "user", "content": "go"}],
        "text": "aaa",
        "row": {"id": "row 1", "gold": 3},
    }
    assert service.headers[0]["Content-Type"] == "application/json"


def test_what_json_does_not_know_is_sent_as_text(service: Service) -> None:
    """Tables have times."""
    asked = replace(answers("a")[0], row={"id": "row 1", "at": datetime(2024, 5, 6, tzinfo=UTC)})
    assert reward(service).score([asked]) == [1]
    assert service.asked[0]["answers"][0]["row"] == {"id": "row 1", "at": "2024-05-06 00:00:00+00:00"}


def test_a_header_has_its_value_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_HEADER", SECRET)
    config = HttpConfig(url=service.url, headers_env={"Authorization": "REWARD_HEADER"})
    HttpReward(config).score(answers("a"))
    assert service.headers[0]["Authorization"] == SECRET
    assert SECRET not in config.model_dump_json()


@pytest.mark.parametrize(
    ("value", "says"),
    [(None, "takes Authorization from REWARD_HEADER, which is not set"), ("a\nb", "REWARD_HEADER has characters")],
)
def test_a_header_without_a_value_that_can_be_sent_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch, value: str | None, says: str
) -> None:
    monkeypatch.delenv("REWARD_HEADER", raising=False)
    if value is not None:
        monkeypatch.setenv("REWARD_HEADER", value)
    with pytest.raises(UsageError, match=says):
        reward(service, headers_env={"Authorization": "REWARD_HEADER"}).score(answers("a"))
    assert not service.asked


def hang(handler: Handler, content: dict[str, Any]) -> None:
    """Say nothing for longer than anybody waits."""
    time.sleep(2)


def dribble(handler: Handler, content: dict[str, Any]) -> None:
    """Send a byte now and then, each within the timeout."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


FAULTS: dict[str, tuple[Reply, str, int]] = {
    "wrong count": (lambda h, c: h.say({"scores": [1.0]}), r"gives 1 scores for 2 answers", 1),
    "no scores": (lambda h, c: h.say({"score": [1.0]}), r"answers with .*'score'.*; it has to be", 1),
    "a text": (lambda h, c: h.say({"scores": ["0.5", 1]}), r"it has to be \{\"scores\"", 1),
    "true": (lambda h, c: h.say({"scores": [True, 1]}), r"it has to be \{\"scores\"", 1),
    "garbage": (lambda h, c: h.say(b"<html>\xff"), r"answers with what is no JSON", 1),
    "nothing": (lambda h, c: h.say(b""), r"answers with what is no JSON", 1),
    "500": (lambda h, c: h.say(b"\nout of memory\nmore", 500), r"says 500 .*: out of memory \(tried 3 times\)", 3),
    "429": (lambda h, c: h.say(b"", 429), r"says 429 .*tried 3 times", 3),
    "404": (lambda h, c: h.say(b"", 404), r"says 404 .*tried 1 times", 1),
    "moved": (
        lambda h, c: h.say(b"", 302, Location="http://127.0.0.1:1/else"),
        r"says 302 .*redirections are not followed",
        1,
    ),
    "hangs up": (lambda h, c: h.connection.close(), r"cannot be asked: .*tried 3 times", 3),
    "hang": (hang, r"cannot be asked: no answer within 0\.3 seconds \(tried 3 times\)", 3),
    "dribble": (dribble, r"cannot be asked: no answer within 0\.3 seconds", 3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_service_that_fails_is_named_with_its_address(service: Service, fault: str) -> None:
    service.reply, says, tries = FAULTS[fault]
    began = time.monotonic()
    with pytest.raises(ComponentError, match=says) as raised:
        reward(service, timeout=0.3).score(answers("a", "b"))
    assert service.url in str(raised.value)
    assert len(service.asked) == tries
    assert time.monotonic() - began < 5


def test_a_service_that_is_back_after_a_fault_is_asked_again(service: Service) -> None:
    def late(handler: Handler, content: dict[str, Any]) -> None:
        handler.say(b"", 503) if len(service.asked) == 1 else lengths(handler, content)

    service.reply = late
    assert reward(service).score(answers("a", "bb")) == [1, 2]
    assert len(service.asked) == 2


def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(ComponentError, match=r"reward http: http://127\.0\.0\.1:9/ cannot be asked: Connection"):
        HttpReward(HttpConfig(url="http://127.0.0.1:9/?key=abc", retries=0)).score(answers("a"))


def test_a_number_that_is_none_is_refused_as_that_of_any_reward(service: Service) -> None:
    service.reply = lambda handler, content: handler.say(b'{"scores": [0.5, NaN]}')
    with pytest.raises(ComponentError, match="reward judge gives nan for an answer to row 1"):
        score_answers({"judge": reward(service)}, answers("a", "b"), OneRank())  # type: ignore[arg-type]
    service.reply = lambda handler, content: handler.say(b'{"scores": [0.5, NaN]}')
    skip = ScoreOptions(on_bad_score="skip")
    found = score_answers({"judge": reward(service)}, answers("a", "b"), OneRank(), skip)  # type: ignore[arg-type]
    assert found == {"judge": [0.5, None]}


def test_nothing_secret_is_in_an_error(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_HEADER", SECRET)
    service.reply = lambda handler, content: handler.say(f"no {handler.headers['Authorization']}".encode(), 401)
    config = HttpConfig(url=f"{service.url}?key=hidden-4711", headers_env={"Authorization": "REWARD_HEADER"})
    with pytest.raises(ComponentError, match="says 401 Unauthorized: no …") as raised:
        HttpReward(config).score(answers("a"))
    assert SECRET not in str(raised.value)
    assert "hidden-4711" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file:///etc/passwd", "is no address of a service"),
        ("host/score", "is no address of a service"),
        ("http://", "is no address of a service"),
        ("http://me:pass@host/score", "has a user or a password in it"),
        ("http://token@host/score", "has a user or a password in it"),
        ("http://host:port/score", "is no address of a service"),
    ],
)
def test_what_is_no_address_or_has_a_password_is_refused_as_an_option(url: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        HttpConfig(url=url)


class TestHttp(BaseRewardConformance):
    plugin, name = plugin, "http"

    @pytest.fixture(autouse=True)
    def _asks(self, service: Service) -> None:
        self.options = {"url": service.url, "batch_size": 3}
