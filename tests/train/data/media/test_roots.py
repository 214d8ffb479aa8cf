"""Files that rows name are regular ones below the roots of the run; everything else is one message, of one kind."""

from __future__ import annotations

import os
import pickle
import socket
from base64 import b64encode, encodebytes
from pathlib import Path
from typing import Any

import pytest

from mt_core.rows import MediaPart
from mt_train.data.media.roots import resolve_file
from mt_train.data.media.rules import (
    BASE64,
    EMPTY,
    IRREGULAR,
    LARGE,
    LETTERS,
    MISSING,
    OUTSIDE,
    SHAPE,
    URL,
    MediaError,
    MediaRules,
)
from mt_train.data.media.values import build_part

MOST = 1000
PLACE = "rows.jsonl:1: field 'images', number 1"


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``rows`` and ``more`` are roots; what lies beside them is not."""
    top = tmp_path_factory.mktemp("top")
    for name in ("rows/in", "more", "rows-not"):
        (top / name).mkdir(parents=True)
    for name in (
        "rows/a.png",
        "rows/in/b.png",
        "more/a.png",
        "more/c.png",
        "secret.png",
        "rows-not/a.png",
        "rows/a b%20ü.png",
    ):
        (top / name).write_bytes(name.encode())
    (top / "rows/large.png").write_bytes(bytes(MOST + 1))
    (top / "rows/most.png").write_bytes(bytes(MOST))
    for link, target in {
        "inside": "in/b.png",
        "out": "../secret.png",
        "away": "/etc/passwd",
        "other": "../more/c.png",
        "loop": "loop",
        "folder": "..",
        "dead": "nothing",
    }.items():
        (top / "rows" / link).symlink_to(target)
    os.mkfifo(top / "rows/fifo")
    return top


@pytest.fixture
def rules(top: Path) -> MediaRules:
    return MediaRules(kinds=frozenset({"image", "dna"}), roots=(top / "rows", top / "more"), max_bytes=MOST)


@pytest.mark.parametrize(
    ("name", "real"),
    {
        "a.png": "rows/a.png",
        "./in/../a.png": "rows/a.png",
        "in/b.png": "rows/in/b.png",
        "c.png": "more/c.png",
        "inside": "rows/in/b.png",
        "other": "more/c.png",
        "../more/a.png": "more/a.png",
        "{top}/rows/a.png": "rows/a.png",
        "file://{top}/rows/a.png": "rows/a.png",
        "a b%20ü.png": "rows/a b%20ü.png",
        "most.png": "rows/most.png",
    }.items(),
)
def test_files_below_the_roots_are_found(top: Path, rules: MediaRules, name: str, real: str) -> None:
    part = build_part("image", name.format(top=top), rules, PLACE)
    assert part == MediaPart("image", path=str((top / real).resolve()))
    assert part.place == PLACE


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing there": ("none.png", MISSING),
    "a link to nothing": ("dead", MISSING),
    "a link to itself": ("loop", MISSING),
    "a file as a folder": ("a.png/b.png", MISSING),
    "a name of a thousand letters": ("x" * 1000, MISSING),
    "a zero byte": ("a\0.png", MISSING),
    "half a character": ("a\ud800.png", MISSING),
    "home": ("~/a.png", MISSING),
    "above": ("../secret.png", OUTSIDE),
    "above through a folder": ("in/../../secret.png", OUTSIDE),
    "beside with the same beginning": ("../rows-not/a.png", OUTSIDE),
    "absolute": ("{top}/secret.png", OUTSIDE),
    "absolute, as an address": ("file://{top}/secret.png", OUTSIDE),
    "a system file": ("/etc/passwd", OUTSIDE),
    "a device": ("/dev/zero", OUTSIDE),
    "a link out": ("out", OUTSIDE),
    "a link to a system file": ("away", OUTSIDE),
    "through a folder that is a link": ("folder/secret.png", OUTSIDE),
    "a root": ("", EMPTY),
    "a root by its name": (".", OUTSIDE),
    "a folder": ("in", IRREGULAR),
    "a pipe": ("fifo", IRREGULAR),
    "too large": ("large.png", LARGE),
    "a URL": ("https://example.com/a.png", URL),
    "a URL in an object": ({"url": "http://127.0.0.1:9/a.png"}, URL),
    "a bucket": ("s3://bucket/a.png", URL),
    "a URL behind file": ("file://https://example.com/a.png", URL),
    "content too large": (bytes(MOST + 1), LARGE),
    "base64 too large": ({"data": b64encode(bytes(MOST + 10)).decode()}, LARGE),
    "base64 too large, before it is decoded": ({"data": "!" * 2 * MOST}, LARGE),
    "no content": (b"", EMPTY),
    "an empty data: URI": ("data:image/png;base64,", EMPTY),
    "broken base64": ("data:image/png;base64,abc", BASE64),
    "letters that base64 has not": ("data:image/png;base64,QUJD!", BASE64),
    "base64 in other letters": ({"data": "äöüß"}, BASE64),
    "a data: URI in percents": ("data:image/png,%89PNG", BASE64),
    "a data: URI without content": ("data:image/png;base64", BASE64),
    "a number": (5, SHAPE),
    "nothing": (None, SHAPE),
    "an empty object": ({}, SHAPE),
    "an object of nulls": ({"bytes": None, "path": None}, SHAPE),
    "bytes as a text": ({"bytes": "abc"}, SHAPE),
    "objects without an end": ({"image": {"image": {"image": {"image": {"image": {"path": "a.png"}}}}}}, SHAPE),
    "a sound that is decoded": ({"array": [0.0], "sampling_rate": 8}, SHAPE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused_with_one_message_of_one_kind(top: Path, rules: MediaRules, name: str) -> None:
    value, kind = REFUSED[name]
    value = value.format(top=top) if isinstance(value, str) else value
    with pytest.raises(MediaError) as caught:
        build_part("image", value, rules, PLACE)
    message = str(caught.value)
    assert message.startswith(PLACE)
    assert caught.value.kind == kind
    assert "\n" not in message
    assert len(message) < 700


def test_what_is_outside_is_never_asked_about(rules: MediaRules, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **more: asked.append(str(path)) or stat(path, **more))
    with pytest.raises(MediaError):
        build_part("image", "/dev/zero", rules, PLACE)
    assert not asked


def test_urls_open_no_connection(rules: MediaRules, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(MediaError, match="never fetched"):
        build_part("image", {"image_url": {"url": "https://example.com/a.png"}}, rules, PLACE)


def test_base64_in_lines_is_content(rules: MediaRules) -> None:
    content = bytes(range(200))
    for text in (encodebytes(content).decode(), b64encode(content).decode()):
        assert build_part("image", {"data": text}, rules, PLACE).content == content
        assert build_part("image", f"DATA:image/png;base64,{text}", rules, PLACE).content == content


def test_a_run_without_roots_reads_no_file_but_content(top: Path) -> None:
    rules = MediaRules(kinds=frozenset({"image"}), roots=())
    assert build_part("image", b"x", rules, PLACE).content == b"x"
    with pytest.raises(MediaError, match="no such file"):
        build_part("image", str(top / "rows/a.png"), rules, PLACE)


@pytest.mark.parametrize(
    ("text", "kind"), [("", EMPTY), (" \n", EMPTY), ("ACGT\x07", LETTERS), ("ÄCGT", LETTERS), ("A" * (MOST + 1), LARGE)]
)
def test_sequences_are_letters_of_ascii(rules: MediaRules, text: str, kind: str) -> None:
    with pytest.raises(MediaError) as caught:
        build_part("dna", text, rules, PLACE)
    assert caught.value.kind == kind


def test_sequences_never_name_files(rules: MediaRules) -> None:
    assert build_part("dna", "a.png", rules, PLACE) == MediaPart("dna", content=b"a.png")


def test_faults_pass_from_one_process_to_another() -> None:
    fault = pickle.loads(pickle.dumps(MediaError("rows.jsonl:1: x", MISSING, ("a.png",))))
    assert (str(fault), fault.kind, fault.files) == ("rows.jsonl:1: x", MISSING, ("a.png",))


def test_a_relative_root_is_that_of_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"x")
        monkeypatch.chdir(tmp_path / name)
        assert resolve_file("x.png", MediaRules(kinds=frozenset(), roots=(Path(),)), "row")[0] == str(
            (tmp_path / name / "x.png").resolve()
        )
