"""The page in a real browser: curves, hover, keyboard, a phone, the dark, and no network.

Needs Chromium (on Debian: ``apt install chromium``); without it every test here is skipped with that reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_tools.report.page import page
from mt_tools.report.run import read_run
from mt_train.tracking.plot import smooth

KEYS = ["loss", "lr", "grad_norm", "tokens_per_second", "memory_gib", "data_wait_seconds"]
LOSS = 'document.querySelector("figure[data-key=loss] svg")'
TIP = 'document.querySelector("figure[data-key=loss] .tip")'

CONTRAST = """
(() => {
  document.querySelectorAll("details").forEach((element) => { element.open = true; });
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = rgba(colour).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (rgba(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const all = [...document.body.querySelectorAll("*")].filter((element) => {
    const own = [...element.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    return own && !["SCRIPT", "STYLE", "NOSCRIPT", "title"].includes(element.tagName) && element.checkVisibility();
  });
  return all.map((element) => {
    const style = getComputedStyle(element), svg = element.namespaceURI.endsWith("svg");
    const [a, b] = [light(svg ? style.fill : style.color), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [ratio, element.tagName + "." + (element.getAttribute("class") ?? ""), element.textContent.slice(0, 30)];
  });
})()
"""


@pytest.fixture
def two_runs_page(
    make_run: Callable[..., Path], about: dict[str, Any], record: Callable[..., dict[str, Any]], tmp_path: Path
) -> Path:
    """A page of two runs: one that is whole, with a gap at steps 30 to 34, and one that stopped at step 40."""
    records = [record(step) for step in range(1, 61)]
    for step in range(30, 35):
        records[step - 1]["loss"] = math.nan
    remote = '</script><img src="http://127.0.0.1:9/x.png" onerror="window.broken = 1">'
    samples = [{"step": s, "row_id": "demo:1", "prompt": "Once", "expected": "upon", "text": remote} for s in (20, 40)]
    prompt = {"row_id": "rows:1", "prompt_text": f"A long question {remote} " + "word " * 40, "finish": "length"}
    rollouts = [
        {
            "step": n + 1,
            "iteration": n,
            "text": f"{remote} {'unbroken' * 60 * k}",
            "reward": k / 2,
            "rewards": {"a": 1.0, "b": k},
        }
        | prompt
        for n in range(3)
        for k in (0, 1)
    ]
    alarms = [{"step": 30, "alarm": "length", "text": "answers have 41 tokens, and 20 at the start"}]
    one = make_run("alpha", records=records, about=about, samples=samples, rollouts=rollouts, alarms=alarms)
    two = make_run("beta", records=[record(step, rate=0.05) for step in range(1, 41)], completed=False)
    html = page([read_run(path, path.name) for path in (one, two)])
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    return tmp_path / "page.html"


def complaints(browser: Any) -> list[dict[str, Any]]:
    """What the console shows: exceptions, console calls and the browser's own words."""
    told = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    return [event for event in browser.events if event.get("method") in told]


def paths(browser: Any, key: str, kind: str = "line") -> list[str]:
    code = (
        f"""[...document.querySelectorAll('figure[data-key="{key}"] .curve .{kind}')].map((p) => p.getAttribute("d"))"""
    )
    return browser.run(code)


def rectangle(browser: Any, element: str) -> dict[str, float]:
    browser.run(f"{element}.scrollIntoView({{ block: 'center' }})")
    browser.settle()
    return json.loads(browser.run(f"JSON.stringify({element}.getBoundingClientRect())"))


def hover(browser: Any, share: float) -> dict[str, Any]:
    """Point at the loss chart, this far to the right, and read the box that appears."""
    box = rectangle(browser, LOSS)
    browser.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    return tip(browser)


def tip(browser: Any) -> dict[str, Any]:
    rows = f"[...{TIP}.querySelectorAll('dt')].map((dt) => [dt.textContent, dt.nextSibling.firstChild.textContent])"
    code = f"({{ shown: !{TIP}.hidden, at: {TIP}.querySelector('.at')?.textContent, rows: {rows} }})"
    return browser.run(code)


def test_every_chart_draws_every_run_and_the_console_stays_empty(chromium: Any, two_runs_page: Path) -> None:
    chromium.open(two_runs_page)
    for key in KEYS:
        drawn = paths(chromium, key)
        assert len(drawn) == 2, key
        assert [path.count("L") + path.count("M") for path in drawn][1] == 40, key
        assert "NaN" not in "".join(drawn), key
    assert [path.count("L") + path.count("M") for path in paths(chromium, "loss", "held-out")] == [3, 2]
    assert complaints(chromium) == []


def test_a_loss_that_is_no_number_leaves_a_gap(chromium: Any, two_runs_page: Path) -> None:
    chromium.open(two_runs_page)
    whole, gap = paths(chromium, "lr")[0], paths(chromium, "loss", "raw")[0]
    assert (whole.count("M"), whole.count("L")) == (1, 59)
    assert (gap.count("M"), gap.count("L")) == (2, 53)


def test_hover_shows_the_values_of_all_runs_at_the_nearest_step(
    chromium: Any, two_runs_page: Path, record: Callable[..., dict[str, Any]]
) -> None:
    chromium.open(two_runs_page)
    said = hover(chromium, 0.35)
    assert said["shown"]
    step = int(said["at"].removeprefix("step "))
    assert 15 < step < 25
    values = dict(said["rows"])
    assert float(values["alpha"]) == pytest.approx(record(step)["loss"], rel=1e-4)
    assert float(values["beta"]) == pytest.approx(record(step, rate=0.05)["loss"], rel=1e-4)
    late = hover(chromium, 0.9)
    assert dict(late["rows"])["beta"] == "–"
    chromium.move(1, 1)
    assert not tip(chromium)["shown"]


def test_the_average_is_that_of_the_picture_of_the_run(chromium: Any, two_runs_page: Path) -> None:
    chromium.open(two_runs_page)
    chromium.run(f"{LOSS}.focus()")
    chromium.press("Home")
    for _ in range(9):
        chromium.press("ArrowRight")
    said = tip(chromium)
    losses = [
        json.loads(line)["loss"]
        for line in (two_runs_page.parent / "alpha/metrics.jsonl").read_text().splitlines()[:10]
    ]
    assert said["at"] == "step 10"
    assert float(dict(said["rows"][:2])["average"]) == pytest.approx(smooth(losses)[-1], rel=1e-4)


def test_the_keyboard_reads_the_curve(
    chromium: Any, two_runs_page: Path, record: Callable[..., dict[str, Any]]
) -> None:
    chromium.open(two_runs_page)
    chromium.run(f"{LOSS}.focus()")
    chromium.press("End")
    said = tip(chromium)
    assert said["at"] == "step 60"
    assert float(dict(said["rows"])["alpha"]) == pytest.approx(record(60)["loss"], rel=1e-4)
    assert float(dict(said["rows"])["evaluation"]) == pytest.approx(record(60)["eval_loss"], rel=1e-4)
    chromium.press("ArrowLeft")
    assert tip(chromium)["at"] == "step 59"
    chromium.press("Escape")
    assert not tip(chromium)["shown"]


def test_axis_scale_average_and_legend_change_what_is_drawn(chromium: Any, two_runs_page: Path) -> None:
    chromium.open(two_runs_page)
    before = paths(chromium, "loss")
    chromium.run("document.querySelector('input[value=tokens]').click()")
    assert hover(chromium, 0.5)["at"] == "60,000 tokens · step 30"
    chromium.run("document.querySelector('input[value=time]').click()")
    assert "time in steps (s)" in chromium.run(f"{LOSS}.textContent")
    chromium.run("document.querySelector('input[value=step]').click()")
    assert paths(chromium, "loss") == before
    chromium.run("document.getElementById('log').click()")
    assert paths(chromium, "loss") != before
    chromium.run("document.getElementById('log').click()")
    chromium.run(
        "{ const s = document.getElementById('smoothing'); s.value = 0; s.dispatchEvent(new Event('input')); }"
    )
    assert paths(chromium, "loss", "raw") == []
    chromium.run("document.querySelectorAll('.legend button')[0].click()")
    assert len(paths(chromium, "loss")) == 1
    assert chromium.run("document.querySelectorAll('.legend button')[0].getAttribute('aria-pressed')") == "false"
    chromium.run("document.querySelectorAll('.legend button')[1].click()")
    assert "runs are hidden" in chromium.run(f"{LOSS}.textContent")
    assert complaints(chromium) == []


def test_charts_have_names_for_those_who_do_not_see_them(chromium: Any, two_runs_page: Path) -> None:
    chromium.open(two_runs_page)
    names = chromium.run("[...document.querySelectorAll('.plot svg')].map((s) => s.getAttribute('aria-label'))")
    titles = chromium.run("[...document.querySelectorAll('.plot svg > title')].map((t) => t.textContent)")
    assert names == titles
    assert len(names) == len(KEYS)
    assert names[0].startswith("Loss by step. alpha: 5.2")
    assert "beta:" in names[0]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(
    chromium: Any, make_run: Callable[..., Path], about: dict[str, Any], tmp_path: Path, dark: bool
) -> None:
    long = "anamethatdoesnotend" * 12
    samples = [{"step": 60, "row_id": long, "prompt": long, "expected": "x" * 300, "text": "y" * 300}]
    about |= {"device": long, "example": "z" * 300}
    config = [{"model": {"name": "m", "weights": f"/{digit}/{'w' * 200}"}} for digit in "12"]
    runs = [
        make_run(f"{digit}-{long}", about=about, samples=samples, config=config[index], completed=False)
        for index, digit in enumerate("12")
    ]
    (tmp_path / "page.html").write_text(page([read_run(path, path.name) for path in runs]), encoding="utf-8")
    chromium.open(tmp_path / "page.html", width=390, height=844, dark=dark)
    chromium.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert chromium.run("document.documentElement.scrollWidth") <= 390
    assert chromium.run("Math.max(...[...document.querySelectorAll('.plot svg')].map((s) => s.clientWidth))") < 390
    for share in (0.1, 0.5, 0.95):
        assert hover(chromium, share)["shown"]
        box = json.loads(chromium.run(f"JSON.stringify({TIP}.getBoundingClientRect())"))
        assert 0 <= box["left"] < box["right"] <= 390


@pytest.mark.parametrize(("dark", "background"), [(False, "rgb(245, 246, 248)"), (True, "rgb(14, 17, 22)")])
def test_text_has_contrast_by_day_and_by_night(chromium: Any, two_runs_page: Path, dark: bool, background: str) -> None:
    chromium.open(two_runs_page, dark=dark)
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == background
    hover(chromium, 0.35)
    measured = chromium.run(CONTRAST)
    assert len(measured) > 100
    assert [entry for entry in measured if entry[0] < 4.5] == []


def test_no_request_leaves_the_page_and_no_text_of_a_run_is_code(chromium: Any, two_runs_page: Path) -> None:
    chromium.open(two_runs_page)
    hover(chromium, 0.5)
    sent = [e["params"]["request"]["url"] for e in chromium.events if e.get("method") == "Network.requestWillBeSent"]
    assert sent == [two_runs_page.resolve().as_uri()]
    assert chromium.run("[typeof window.broken, document.images.length]") == ["undefined", 0]
    assert "onerror=" in chromium.run("document.querySelector('.sample .text').textContent")


def test_the_policy_stops_what_would_be_slipped_in(chromium: Any, two_runs_page: Path) -> None:
    chromium.open(two_runs_page)
    chromium.run("""document.body.insertAdjacentHTML("beforeend", '<img src="data:," onerror="window.broken = 1">')""")
    assert (
        chromium.run("fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.message)") == "Failed to fetch"
    )
    chromium.settle()
    assert chromium.run("typeof window.broken") == "undefined"
    assert any("Content Security Policy" in json.dumps(event) for event in complaints(chromium))


def test_without_a_script_the_tables_are_seen(chromium: Any, two_runs_page: Path) -> None:
    chromium.open(two_runs_page, scripts=False)
    assert "alpha (evaluation)" in chromium.run("document.querySelector('figure[data-key=loss]').innerText")
    assert chromium.run("document.querySelectorAll('.plot svg').length") == 0


def test_a_long_run_shows_means_and_extremes_and_averages_over_steps(
    chromium: Any, make_run: Callable[..., Path], record: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    records = [record(step, rate=0.002) for step in range(1, 4001)]
    records[2500]["loss"] = 50.0
    run = make_run("long", records=records)
    (tmp_path / "long.html").write_text(page([read_run(run, "long")]), encoding="utf-8")
    chromium.open(tmp_path / "long.html")
    chromium.run(f"{LOSS}.focus()")
    chromium.press("Home")
    for _ in range(124):
        chromium.press("ArrowRight")
    said = tip(chromium)
    own = [entry["loss"] for entry in records[:500]]
    assert said["at"] == "steps 497–500"
    assert float(dict(said["rows"])["Loss"]) == pytest.approx(sum(own[-4:]) / 4, rel=1e-4)
    assert float(dict(said["rows"])["average"]) == pytest.approx(smooth(own)[-1], abs=0.05)
    assert f"{min(own[-4:]):.4f} … {max(own[-4:]):.4f}" in chromium.run(f"{TIP}.textContent")
    heights = [float(pair.split(" ")[1]) for pair in re.split("[MLZ]+", paths(chromium, "loss", "band")[0]) if pair]
    assert min(heights) >= 10
    assert max(heights) - min(heights) > 200


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_run_of_few_steps_is_drawn_too(
    chromium: Any, make_run: Callable[..., Path], record: Callable[..., dict[str, Any]], tmp_path: Path, count: int
) -> None:
    run = make_run("few", records=[record(step) for step in range(1, count + 1)])
    (tmp_path / "few.html").write_text(page([read_run(run, "few")]), encoding="utf-8")
    chromium.open(tmp_path / "few.html")
    drawn = paths(chromium, "loss")
    assert len(drawn) == (count > 0)
    assert "NaN" not in "".join(drawn)
    assert complaints(chromium) == []


def test_values_at_the_ends_of_what_a_number_holds_are_drawn_in_both_scales(
    chromium: Any, make_run: Callable[..., Path], record: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The ratio of two of them, and their difference, is beyond every number; an axis of it had no end."""
    records = [record(step) for step in range(1, 6)]
    for each, loss, lr, norm in zip(
        records, (1.7e308, 1e-5, 2.0, 3.0, 1e308), (1e-320, 2e-320, 5e-324, 0, 0), (1e308, -1e308, 0, 1, 2), strict=True
    ):
        each |= {"loss": loss, "lr": lr, "grad_norm": norm}
    (tmp_path / "odd.html").write_text(page([read_run(make_run("odd", records=records), "odd")]), encoding="utf-8")
    chromium.open(tmp_path / "odd.html")
    for _ in ("linear", "logarithmic"):
        for key in ("loss", "lr", "grad_norm"):
            drawn = "".join(paths(chromium, key) + paths(chromium, key, "raw"))
            assert re.search("NaN|Infinity", drawn) is None, key
        assert chromium.run("document.querySelectorAll('figure[data-key=loss] .tick.y').length") > 1
        chromium.run("document.getElementById('log').click()")
    assert complaints(chromium) == []
