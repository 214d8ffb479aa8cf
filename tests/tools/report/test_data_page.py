"""The page of mt-data inspect in a real browser: bars, marks, a phone, the dark, and no network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mt_tools.cli.data import main
from mt_tools.report.data_page import data_page


@pytest.fixture
def rows_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A page of rows with a bad one, a hostile one and a long name."""
    monkeypatch.chdir(tmp_path)
    hostile = '</script><img src="http://127.0.0.1:9/x.png" onerror="window.broken = 1">'
    rows = [{"prompt": hostile, "response": "yes"}, {"prompt": "q", "response": "a" * 100}, {"prompt": "q"}]
    name = "aname" * 40 + ".jsonl"
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--dataset", "jsonl", "--dataset.path", name, "--objective", "sft", "--data.eval", "none"]
    main(["inspect", *words, "--html", "page.html"])
    return tmp_path / "page.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_bars_and_marks_and_asks_nobody(chromium: Any, rows_page: Path, dark: bool) -> None:
    chromium.open(rows_page, dark=dark)
    widths = chromium.run("[...document.querySelectorAll('.bar rect')].map((r) => r.getBoundingClientRect().width)")
    assert max(widths) > 200
    assert chromium.run("[...document.querySelectorAll('mark')].map((m) => m.textContent)")[0] == "yes<eos>"
    sent = [e["params"]["request"]["url"] for e in chromium.events if e.get("method") == "Network.requestWillBeSent"]
    assert sent == [rows_page.resolve().as_uri()]
    assert chromium.run("[typeof window.broken, document.images.length]") == ["undefined", 0]
    assert [e for e in chromium.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")] == []


def test_a_phone_shows_the_page_without_scrolling_sideways(chromium: Any, rows_page: Path) -> None:
    chromium.open(rows_page, width=390, height=844)
    assert chromium.run("document.documentElement.scrollWidth") <= 390


def test_media_are_small_pictures_in_the_page_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    name = '"><img src=x onerror=alert(1)>.png'
    image.new("RGB", (400, 300), "red").save(name)
    rows = [{"prompt": "<image> ?", "response": "red", "images": [name]}, {"prompt": "q", "response": "a"}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--dataset", "jsonl", "--dataset.path", "rows.jsonl", "--objective", "sft", "--data.eval", "none"]
    main(["inspect", *words, "--encoders", "clip", "--html", "page.html", "--json"])
    text, about = Path("page.html").read_text(), json.loads(capsys.readouterr().out)
    assert re.findall(r"<img [^>]*", text) == [
        f'<img src="{about["examples"][0]["parts"][1]["picture"]}" alt="" class="thumbnail"'
    ]
    assert "⟨image 400×300 → 16 tokens: " in text
    assert "&quot;&gt;&lt;img src=x onerror" in text
    assert "form-action 'none'; img-src data:\"" in text
    about["examples"][0]["parts"][1]["picture"] = "http://127.0.0.1:9/x.png"
    assert "<img" not in data_page(about)
    del about["examples"][0]["parts"][1]["picture"]
    assert "img-src" not in data_page(about)
