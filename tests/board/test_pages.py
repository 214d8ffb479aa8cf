"""The pages in a browser: what a reader sees while runs go on, and what the page never does."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from board_runs import Client, append, record, served
from chromium import Chromium

from mt_core.tracking.step_lines import StepLines
from mt_plugin_board.reader import RunReader

MakeRun = Callable[..., Path]
CANARY = "<img src=x onerror=\"window.canary='NAME'\"><script>window.canary='NAME'</script>'\"&NAME"


@pytest.fixture
def open_page(chromium: Chromium) -> Iterator[Callable[..., Chromium]]:
    """A page of a server, laid out once it is live; left again at the end, so that no stream stays open."""

    def opened(client: Client, path: str, **window: Any) -> Chromium:
        chromium.open(f"http://127.0.0.1:{client.server.port}{path}", **window)
        await_true(chromium, "document.getElementById('live').textContent === 'live'")
        chromium.settle()
        return chromium

    yield opened
    chromium.open("about:blank")


def await_true(browser: Chromium, condition: str, seconds: float = 10.0) -> float:
    """Seconds until an expression of the page is true."""
    began = time.monotonic()
    while not browser.run(condition):
        assert time.monotonic() - began < seconds, condition
        time.sleep(0.05)
    return time.monotonic() - began


def problems(browser: Chromium) -> list[Any]:
    """What the page has logged, thrown, or asked of anybody else."""
    own = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    found = [event["params"] for event in browser.events if event.get("method") in own]
    asked = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    return found + [url for url in asked if not url.startswith(("http://127.0.0.1:", "about:", "data:"))]


LAST = "board.data && (board.data.runs[0]?.series.loss?.x.at(-1) ?? 0)"


def test_a_page_follows_a_run_and_has_what_a_fresh_page_has(
    make_run: MakeRun, open_page: Callable[..., Chromium]
) -> None:
    folder = make_run(steps=30)
    with served(folder.parent) as client:
        browser = open_page(client, "/runs?run=runs/a")
        assert browser.run(LAST) == 30
        append(folder / "metrics.jsonl", *map(record, range(31, 42)))
        await_true(browser, f"{LAST} === 41")
        text = browser.run("document.querySelector('figure[data-key=loss] svg').getAttribute('aria-label')")
        assert "to 1.622 at step 41" in text
        append(folder / "events.jsonl", {"time": 1.0, "step": 41, "kind": "warning", "text": "rows are few"})
        await_true(browser, "document.getElementById('part-notices').textContent.includes('rows are few')")
        client.server.ended.set()  # every stream ends, as where a laptop sleeps
        await_true(browser, "document.getElementById('live').className === 'off'")
        client.server.ended.clear()
        append(folder / "metrics.jsonl", record(42))
        await_true(browser, f"{LAST} === 42")
        StepLines(folder / "metrics.jsonl").cut_back(25)
        append(folder / "metrics.jsonl", record(26) | {"loss": 7.0})
        await_true(browser, f"{LAST} === 26")
        append(folder / "metrics.jsonl", record(27))
        await_true(browser, f"{LAST} === 27")
        live = browser.run("JSON.stringify(board.data)")
        assert problems(browser) == [], "the connection that was cut is no error of the page"
        browser = open_page(client, "/runs?run=runs/a")
        assert browser.run("JSON.stringify(board.data)") == live
        assert live.count("7,") >= 1
        kept = folder.rename(folder.with_name("b"))
        await_true(browser, "document.getElementById('problem').textContent.includes('not there any more')")
        assert browser.run(LAST) == 27
        kept.rename(folder)
        await_true(browser, "document.getElementById('problem').hidden")


def test_what_a_reader_chooses_is_in_the_address_and_stays_while_figures_come(
    make_run: MakeRun, open_page: Callable[..., Chromium]
) -> None:
    first, second = make_run("a", steps=40), make_run("b", steps=60)
    with served(first.parent) as client:
        browser = open_page(client, "/runs?run=runs/a&run=runs/b")
        browser.run("document.querySelector('#controls input[value=tokens]').click()")
        browser.run("document.getElementById('log').click()")
        browser.run("document.querySelectorAll('.legend button')[1].click()")
        address = browser.run("location.search")
        assert address == "?run=runs%2Fa&run=runs%2Fb&x=tokens&log=1&hide=runs%2Fb"
        append(second / "metrics.jsonl", record(61))
        await_true(browser, "board.data.runs[1].series.loss.x.at(-1) === 61")
        shown = "JSON.stringify([board.charts.state.axis, board.charts.state.log, [...board.charts.state.hidden]])"
        assert json.loads(browser.run(shown)) == ["tokens", True, [1]]
        browser = open_page(client, f"/runs{address}")
        assert json.loads(browser.run(shown)) == ["tokens", True, [1]]
        assert browser.run("document.querySelectorAll('figure[data-key=loss] svg .curve').length") == 2
        assert browser.run("document.querySelector('#part-tokens td').textContent") == "training loss"
        for key, axis in (("s", "step"), ("h", "time"), ("t", "tokens")):
            browser.press(key)
            assert browser.run("board.charts.state.axis") == axis
        browser.press("l")
        assert browser.run("board.charts.state.log") is False
        assert problems(browser) == []


def test_the_index_is_filtered_sorted_and_compared_by_keyboard(
    make_run: MakeRun, open_page: Callable[..., Chromium]
) -> None:
    for name, steps in (("alpha", 60), ("beta", 20), ("gamma", 40)):
        folder = make_run(name, steps=steps)
    names = "JSON.stringify([...document.querySelectorAll('tbody tr:not([hidden]) a')].map(each => each.textContent))"
    with served(folder.parent) as client:
        browser = open_page(client, "/?sort=-step")
        assert json.loads(browser.run(names)) == ["alpha", "gamma", "beta"]
        browser.press("j")
        assert browser.run("document.activeElement.textContent") == "alpha"
        browser.press("x")
        browser.press("j")
        browser.press("x")
        assert browser.run("document.getElementById('compare').textContent") == "Compare 2 runs"
        assert (
            browser.run("document.getElementById('compare').getAttribute('href')")
            == "/runs?run=runs%2Falpha&run=runs%2Fgamma"
        )
        browser.run("document.querySelector('th[data-key=run] button').click()")
        browser.press("/")
        browser.call("Input.insertText", text="ga")
        assert json.loads(browser.run(names)) == ["gamma"]
        assert browser.run("location.search") == "?pick=runs%2Falpha&pick=runs%2Fgamma&sort=run&filter=ga"
        assert problems(browser) == []


@pytest.mark.parametrize("width", [390, 1100])
def test_no_text_of_a_run_becomes_more_than_text_and_nothing_leaves_the_page(
    width: int, make_run: MakeRun, open_page: Callable[..., Chromium], tmp_path: Path
) -> None:
    def canary(name: str) -> str:
        return CANARY.replace("NAME", name)

    about = {
        "model": canary("model"),
        "device": canary("device"),
        "example": canary("example"),
        "origins": {"model.name": canary("origin")},
    }
    about |= {"ended": {"reason": "failed", "step": 3, "error": canary("error")}, "started": canary("started")}
    config = {"model": {"name": canary("config")}, canary("key"): 1}
    name = canary("folder").replace("/", "\u2215")
    folder = make_run(name, steps=5, about=about, config=config)
    append(folder / "metrics.jsonl", record(6) | {canary("figure"): 1.0})
    (folder / "plugins.lock.json").write_text(json.dumps({"plugins": {canary("plugin"): canary("version")}}))
    append(
        folder / "samples.jsonl",
        dict.fromkeys(("row_id", "prompt", "expected", "text"), canary("sample")) | {"step": 5},
    )
    append(folder / "events.jsonl", {"time": 1.0, "step": 5, "kind": canary("kind"), "text": canary("notice")})
    append(folder / "alarms.jsonl", {"step": 5, "alarm": canary("alarm"), "text": canary("alarm text")})
    append(
        folder / "evaluations.jsonl",
        {
            "step": 5,
            "evaluation": canary("evaluation"),
            "figures": {canary("of"): 1.0},
            "groups": {canary("group"): {"x": 1.0}},
            "notes": [canary("note")],
        },
    )
    append(
        folder / "rollouts.jsonl",
        {
            "step": 1,
            "iteration": 0,
            "row_id": canary("row"),
            "prompt_text": canary("ask"),
            "text": canary("answer"),
            "rewards": {canary("reward"): 1.0},
        },
    )
    append(folder / "system.jsonl", {"time": 1.0, "rank": 0, "host": canary("host"), "cpu": 0.5})
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").write_text(canary("log") + "\n")
    search = folder.parent / "search"
    search.mkdir()
    (search / "search.yaml").write_text(json.dumps({"metric": canary("metric")}))
    with (search / "trials.csv").open("w", newline="") as file:
        rows = [[canary(f"{each}{row}") for each in ("t", "s", "m", "k", "n", "z", "r", "e")] for row in range(3)]
        for number, row in enumerate(rows[1:]):
            row[2] = str(number)
        csv.writer(file).writerows(rows)
    with served(folder.parent) as client:
        with client.stream("/live/index") as events:
            identifier = next(events)[1]["rows"][0]["id"]
        browser = open_page(client, "/", width=width)
        for path in ("/", f"/runs?{urlencode({'run': identifier})}", f"/search?{urlencode({'search': 'runs/search'})}"):
            browser = open_page(client, path, width=width)
            time.sleep(0.2)
            assert browser.run("window.canary === undefined"), path
            assert browser.run("document.querySelectorAll('main img, main script, header img').length") == 0
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert problems(browser) == []
        shown = open_page(client, f"/runs?{urlencode({'run': identifier})}", width=width).run(
            "document.body.textContent"
        )
        for each in (
            "model",
            "device",
            "error",
            "config",
            "plugin",
            "sample",
            "notice",
            "alarm",
            "evaluation",
            "group",
            "note",
            "answer",
            "log",
            "host",
            "origin",
            "figure",
        ):
            assert f"&{each}" in shown, each


def test_a_hidden_page_keeps_no_connection(make_run: MakeRun, open_page: Callable[..., Chromium]) -> None:
    folder = make_run(steps=3)
    with served(folder.parent) as client:
        browser = open_page(client, "/runs?run=runs/a")
        hide = (
            "Object.defineProperty(document, 'hidden', {configurable: true, get: () => HIDDEN});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        browser.run(hide.replace("HIDDEN", "true"))
        append(folder / "metrics.jsonl", record(4))
        time.sleep(1.2)
        assert browser.run(LAST) == 3
        browser.run(hide.replace("HIDDEN", "false"))
        await_true(browser, f"{LAST} === 4")


@pytest.mark.soak
def test_a_page_takes_no_more_memory_after_a_thousand_ticks(
    make_run: MakeRun, open_page: Callable[..., Chromium], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From groups of four steps to as many groups of eight, so that the page has as many figures at the end; the first
    hundred ticks are its warm-up."""
    monkeypatch.setattr("mt_plugin_board.server.TICK_SECONDS", 0.01)
    refresh = RunReader.refresh
    monkeypatch.setattr(RunReader, "refresh", lambda reader, now: refresh(reader, now, every=0.0))
    folder, step = make_run(steps=2008), 2008
    with served(folder.parent) as client:
        browser = open_page(client, "/runs?run=runs/a")
        sizes, counts = [], []
        for _ in range(1210):
            append(folder / "metrics.jsonl", record(step + 1), record(step + 2))
            step += 2
            time.sleep(0.04)  # asking the page each time takes memory of its own
            if step in (2210, 4418):
                await_true(browser, f"board.data.runs[0].axes.tokens.x.at(-1) === {step}")
                assert browser.run("board.data.runs[0].series.loss.x.length") in (552, 553)
                browser.call("HeapProfiler.collectGarbage")
                sizes.append(browser.call("Runtime.getHeapUsage")["usedSize"])
                counts.append(browser.call("Memory.getDOMCounters"))
        print([f"{size / 1e6:.2f} MB" for size in sizes], counts)
        assert sizes[1] <= 1.1 * sizes[0]
        for name in ("nodes", "jsEventListeners"):
            assert counts[1][name] <= 1.1 * counts[0][name], name


def test_a_run_that_is_not_there_is_said(
    make_run: MakeRun, open_page: Callable[..., Chromium], chromium: Chromium
) -> None:
    with served(make_run().parent) as client:
        chromium.open(f"http://127.0.0.1:{client.server.port}/runs?run=runs/nothing")
        await_true(
            chromium, "document.getElementById('problem').textContent.includes(\"no run 'runs/nothing' is there\")"
        )
        chromium.open("about:blank")


HEAD = "trial,state,accuracy,optimizer.lr,optimizer.name,train.seed,steps,seconds,run,error\n"


def make_search(folder: Path) -> Path:
    """Trials over a number on a logarithmic axis, names, and a setting that never changes."""
    folder.mkdir(parents=True)
    (folder / "search.yaml").write_text("metric: accuracy:max")
    rows = [
        f"{number},complete,{0.4 + number / 100},{10 ** (-4 + number / 5)},{name},7,10,2.0,trial-{number:03d},\n"
        for number, name in enumerate(("adamw", "muon", "sgd", "adamw", "muon"), 1)
    ]
    (folder / "trials.csv").write_text(HEAD + "".join(rows) + "6,failed,,1e-2,sgd,7,3,1.0,trial-006,loss nan\n")
    return folder


@pytest.mark.parametrize(("width", "dark"), [(1100, False), (390, True)])
def test_a_search_is_drawn_as_lines_over_its_settings_that_are_read_and_chosen_by_keyboard(
    width: int, dark: bool, tmp_path: Path, open_page: Callable[..., Chromium]
) -> None:
    search = make_search(tmp_path / "runs" / "search")
    texts = (
        "JSON.stringify([...document.querySelectorAll('.parallel SELECTOR')].map(each => each.firstChild.textContent))"
    )
    status = "document.querySelector('[role=status].detail').textContent"
    chosen = "JSON.stringify([...document.querySelectorAll('.parallel .chosen')].length)"
    with served(search.parent) as client:
        browser = open_page(client, "/search?search=runs/search", width=width, dark=dark)
        titles = json.loads(browser.run(texts.replace("SELECTOR", ".title")))
        assert titles == ["log optimizer.lr", "optimizer.name", "accuracy"], "the seed is the same in all trials"
        ticks = json.loads(browser.run(texts.replace("SELECTOR", ".tick:not(.title)")))
        assert ticks == [
            "1.58e-4",
            "2.51e-4",
            "3.98e-4",
            "6.31e-4",
            "0.001",
            "0.01",
            "adamw",
            "muon",
            "sgd",
            "0.41",
            "0.42",
            "0.43",
            "0.44",
            "0.45",
        ]
        assert browser.run("document.querySelectorAll('.parallel .line').length") == 6
        heights = (
            "JSON.stringify([...document.querySelectorAll('.parallel .best')].map(each => each.getAttribute('d')))"
        )
        assert json.loads(browser.run(heights))[0].endswith(" 34.0"), "the best figure is at the top of the last axis"
        assert browser.run("document.querySelectorAll('.parallel .unfinished').length") == 1
        browser.run("document.querySelector('.lines').focus()")
        browser.press("ArrowDown")
        assert browser.run(status) == "Trial 5 (best): optimizer.lr 0.001, optimizer.name muon, accuracy 0.45"
        browser.press("ArrowDown")
        browser.press("Enter")
        assert browser.run("location.search").endswith("&pick=runs%2Fsearch%2Ftrial-004")
        assert browser.run(chosen) == "1"
        assert browser.run("document.querySelector('tr[data-id$=\"004\"] input').checked")
        browser.run("document.querySelector('.lines').blur()")
        browser.press("/")
        browser.call("Input.insertText", text="failed")
        assert browser.run("document.querySelectorAll('.parallel .line').length") == 1
        browser = open_page(client, f"/search{browser.run('location.search')}", width=width, dark=dark)
        assert browser.run("document.querySelectorAll('tbody tr:not([hidden])').length") == 1
        with (search / "trials.csv").open("a") as file:
            file.write("7,failed,,1e-2,lion,7,3,1.0,trial-007,\n")
        await_true(browser, "document.querySelectorAll('.parallel .line').length === 2")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert problems(browser) == []
