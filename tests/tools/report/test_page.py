"""The page as text: complete, safe to open, and readable without a script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mt_tools.report.page import page
from mt_tools.report.run import read_run
from mt_tools.report.sections import mark_quoted

MakeRun = Callable[..., Path]
Record = Callable[..., dict[str, Any]]
EVIL = "</script><img src=x onerror=alert(1)><script>alert(2)</script><!-- \u2028 & \"'"


class Elements(HTMLParser):
    """Names and attributes of all elements, and the text in them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page_of(*folders: Path) -> str:
    return page([read_run(folder, folder.name) for folder in folders])


def embedded_data(html: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def plain_text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html.split("<main>")[1].split("</main>")[0]))


def test_text_in_a_run_is_never_markup(make_run: MakeRun, about: dict[str, Any], record: Record) -> None:
    about |= {"example": f"«{EVIL}»", "device": EVIL, "model": EVIL}
    about["data"]["train"]["rows_dropped"] = {EVIL: 1}
    run = make_run(
        config={"model": {"name": EVIL, EVIL: EVIL}, "train": {"steps": 3}},
        records=[record(step) | {EVIL: 1.0} for step in (1, 2, 3)],
        about=about,
        samples=[{"step": 3, "row_id": EVIL, "prompt": EVIL, "expected": EVIL, "text": EVIL}],
    )
    html = page_of(run)
    elements = Elements(html)
    names = [name for name, _ in elements.found]
    assert names.count("script") == 2
    assert "img" not in names
    assert not [key for _, attributes in elements.found for key in attributes if key.startswith("on")]
    assert sum(text.count("<img src=x onerror=alert(1)>") for text in elements.texts) >= 8
    assert EVIL in embedded_data(html)["runs"][0]["series"]


def test_the_policy_allows_our_style_and_script_and_nothing_else(make_run: MakeRun) -> None:
    html = page_of(make_run())
    style, script = (re.findall(f"<{name}>(.*?)</{name}>", html, re.DOTALL) for name in ("style", "script"))
    assert len(style) == len(script) == 1
    policy = next(a["content"] for n, a in Elements(html).found if a.get("http-equiv") == "Content-Security-Policy")
    hashes = [
        "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (*style, *script)
    ]
    assert policy == (
        f"default-src 'none'; style-src '{hashes[0]}'; script-src '{hashes[1]}'; base-uri 'none'; form-action 'none'"
    )


def test_nothing_points_to_another_place(make_run: MakeRun, about: dict[str, Any]) -> None:
    html = page_of(make_run(about=about))
    assert not [a for _, a in Elements(html).found if {"src", "href", "action", "style"} & set(a)]
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {"http://www.w3.org/2000/svg"}


def test_the_head_tells_how_the_run_ended(make_run: MakeRun, about: dict[str, Any], record: Record) -> None:
    text = plain_text(page_of(make_run(about=about)))
    for words in (
        "completed, 60 steps",
        "Evaluation loss 1.6099 perplexity 5.002, step 60",
        "Parameters 4,000 1,000 trained (25 %), float32",
        "Tokens trained 120,000",
        "Device CPU, 2 threads a process",
        "Started 2026-03-01 10:00:00+00:00",
    ):
        assert words in text
    stopped = plain_text(page_of(make_run("b", records=[record(step) for step in range(1, 8)], completed=False)))
    assert "stopped at step 7 of 60" in stopped
    assert "step 7, no evaluation" in stopped


def test_the_best_loss_is_not_the_last_one(make_run: MakeRun, record: Record) -> None:
    records = [record(1) | {"eval_loss": 2.0}, record(2) | {"eval_loss": 1.0}, record(3) | {"eval_loss": 1.5}]
    text = plain_text(page_of(make_run(records=records)))
    assert "Evaluation loss 1.5000 perplexity 4.482, step 3" in text
    assert "Best evaluation loss 1.0000 step 2, perplexity 2.718" in text


def test_rows_and_why_they_were_dropped(make_run: MakeRun, about: dict[str, Any]) -> None:
    text = plain_text(page_of(make_run(about=about)))
    assert "Rows dropped 5 because: empty 4 because: too long 1" in text
    assert "Tokens trained on 462,300" in text


SECRETS = {
    "HF": "hf_" + "a1" * 17,
    "GITHUB": "github_pat_" + "b2" * 20,
    "ADDRESS": "https://c3c3c3c3c3c3@host/x",
    "QUERY": "https://host/x?sig=d4d4d4d4d4d4",
    "KEY": "-----BEGIN PRIVATE KEY-----\ne5e5\n-----END PRIVATE KEY-----",
    "ENVIRONMENT": "zq9<zq9>&zq9\"zq9'zq9",
}
TRACES = ("a1a1", "b2b2", "c3c3", "d4d4", "e5e5", "zq9")


def test_no_secret_is_in_the_page_wherever_it_stood_and_however_it_is_escaped(
    make_run: MakeRun, about: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SERVICE_KEY", SECRETS["ENVIRONMENT"])
    text = " ".join(SECRETS.values())
    config = {"model": {"name": text}, "dataset": {"path": [text]}, "callbacks": [{"name": "x", "url": text}]}
    sample = {"step": 20, "row_id": text, "prompt": text, "expected": text, "text": text}
    about |= {"example": f"«{text}»", "device": text, "warnings": [text], "model": text, "layout": text}
    run = make_run(f"run {SECRETS['HF']}", config=config, about=about, samples=[sample])
    (run / "plugins.lock.json").write_text(json.dumps({"plugins": {text: text}}))
    other = make_run("other", config={"model": {"name": "m"}}, about=about)
    html = page([read_run(run, text), read_run(other, "other")])
    for name, trace in zip(SECRETS, TRACES, strict=True):
        assert trace not in html, name


def test_no_secret_is_in_the_page(make_run: MakeRun, about: dict[str, Any]) -> None:
    config = {"model": {"name": "m"}, "hub": {"token": "hf_config_hunter", "url": "https://me:word_hunter@host"}}
    html = page_of(make_run(config=config, about=about), make_run("b", about=about))
    assert "hunter" not in html
    assert "•••" in html


def test_samples_are_grouped_by_step_with_the_newest_open(make_run: MakeRun) -> None:
    samples = [
        {"step": step, "row_id": "demo:1", "prompt": "Once", "expected": "upon", "text": f"written at {step}"}
        for step in (20, 40, 60)
    ]
    html = page_of(make_run(samples=samples))
    part = html[html.index('<section id="samples"') : html.index('<section id="config"')]
    assert re.findall(r"<details( open)?><summary>Step (\d+)", part) == [(" open", "60"), ("", "40"), ("", "20")]
    assert part.index("written at 60") < part.index("written at 20")


def test_samples_show_what_has_changed_since_the_evaluation_before(make_run: MakeRun) -> None:
    texts = ("the cat sat on a mat", "the cat sat on a mat", "the dog sat on a mat", "nothing else is here now")
    samples = [
        {"step": step, "row_id": row, "prompt": "p", "text": text}
        for step, text in enumerate(texts, 1)
        for row in ("a", f"only at {step}")
    ]
    html = page_of(make_run(samples=samples))
    first, *later = html[html.index('<section id="samples"') : html.index('<section id="config"')].split("</details>")
    assert "another text than at step 3" in first
    assert "<del>cat </del><ins>dog </ins>sat on a mat" in later[0]
    assert later[0].count("Changes since step 2") == 1, "a row that was not asked before has nothing to differ from"
    assert "the same as at step 1" in later[1]
    assert "as at step" not in later[2]


def test_many_and_long_samples_are_cut_and_the_page_says_so(make_run: MakeRun) -> None:
    samples = [{"step": step, "text": "x" * 5000} for step in range(1, 51)]
    html = page_of(make_run(samples=samples))
    assert "30 older or further sample(s) are not shown" in html
    assert [step for step in range(1, 51) if f">Step {step:,}<" in html] == list(range(31, 51))
    assert "… (3,000 more letters)" in html
    assert len(html) < 250_000


def test_text_between_guillemets_is_marked() -> None:
    assert mark_quoted("a «b» c «d") == "a <mark>b</mark> c <mark>d</mark>"
    assert mark_quoted("no mark <b>") == "no mark &lt;b&gt;"


def test_several_runs_list_only_what_differs_and_the_versions_of_each(make_run: MakeRun) -> None:
    one = make_run("one", config={"model": {"name": "m"}, "optimizer": {"lr": 0.1}})
    two = make_run("two", config={"model": {"name": "m"}, "optimizer": {"lr": 0.2}})
    text = plain_text(page_of(one, two))
    assert "Key that differs one two optimizer.lr 0.1 0.2 run.yaml of one" in text
    assert "Distribution one two mt-plugin-llama 0.1.0 0.1.0" in text
    same = plain_text(page_of(one, make_run("x", config={"model": {"name": "m"}, "optimizer": {"lr": 0.1}})))
    assert "The runs have the same config." in same


def test_without_a_script_tables_stand_in_for_the_curves(make_run: MakeRun, record: Record) -> None:
    html = page_of(make_run(records=[record(step) | {"router_loss": float(step)} for step in range(1, 61)]))
    figures = re.findall(r'<figure class="[^"]*" data-key="([^"]*)">(.*?)</figure>', html, re.DOTALL)
    keys = ["loss", "lr", "grad_norm", "tokens_per_second", "memory_gib", "data_wait_seconds", "router_loss"]
    assert [key for key, _ in figures] == keys
    assert all("<noscript><div" in content for _, content in figures)
    assert "run 1 (step 1) 31 (step 31) 60 (step 60) 1 (step 1) 60 (step 60)" in plain_text(html)


def test_a_figure_of_evaluations_alone_has_a_chart_and_pairs_share_one(make_run: MakeRun, record: Record) -> None:
    records = [record(step) | {"accuracy": 0.5, "eval_accuracy": 0.4, "eval_reward": 1.0} for step in (1, 2)]
    charts = {
        chart["key"]: chart.get("held_out") for chart in embedded_data(page_of(make_run(records=records)))["charts"]
    }
    assert charts["accuracy"] == "eval_accuracy"
    assert charts["eval_reward"] == "eval_reward"
    assert "eval_accuracy" not in charts


def test_half_a_surrogate_pair_can_be_written(make_run: MakeRun) -> None:
    from mt_tools.cli.report import main

    run = make_run()
    (run / "samples.jsonl").write_text('{"step": 1, "text": "\\ud83d \\u0000"}\n')
    assert main([str(run)]) == 0
    assert "?" in (run / "report.html").read_text(encoding="utf-8")


def test_a_page_of_the_longest_run_stays_under_two_megabytes(make_run: MakeRun, record: Record) -> None:
    """31,900 steps leave 997 of at most 1,000 groups; a run of a million steps has fewer (``test_series``)."""
    run = make_run(records=[record(step, rate=1e-4) for step in range(1, 31_901)])
    html = page_of(run)
    assert len(embedded_data(html)["runs"][0]["series"]["loss"]["x"]) == 997
    assert len(html.encode()) < 700_000
    assert "31,900 steps are drawn as groups of 32 steps" in html


def test_the_script_and_the_style_are_declared_as_package_data() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[3] / "tools/pyproject.toml").read_text())
    assert "report/assets/*" in project["tool"]["setuptools"]["package-data"]["mt_tools"]
    assert project["project"]["scripts"]["mt-report"] == "mt_tools.cli.report:main"


@pytest.mark.parametrize(
    ("ended", "shown"),
    [
        (None, "stopped at step 7 of 60 or still running"),
        ("not an end", "stopped at step 7 of 60 or still running"),
        ({"reason": "stopped", "step": 7, "error": "SIGTERM"}, "stopped at step 7 of 60 (SIGTERM)"),
        (
            {"reason": "failed", "step": 7, "error": "NonFiniteError: step 8: loss nan"},
            "failed at step 7 of 60 (NonFiniteError: step 8: loss nan)",
        ),
    ],
)
def test_a_run_that_failed_is_shown_as_failed_and_why(
    ended: Any, shown: str, make_run: MakeRun, record: Record, about: dict[str, Any]
) -> None:
    run = make_run(records=[record(step) for step in range(1, 8)], completed=False, about=about | {"ended": ended})
    text = " ".join(plain_text(page_of(run)).split())
    assert shown in text
    assert ("or still running" in text) == ("still running" in shown)


def test_a_loss_that_is_no_mean_over_tokens_has_its_own_unit_and_no_perplexity(
    make_run: MakeRun, record: Record, about: dict[str, Any]
) -> None:
    records = [record(1) | {"eval_loss": 2.0}, record(2) | {"eval_loss": 1.0}]
    pairs = plain_text(page_of(make_run("a", records=records, about=about | {"loss_unit": "nats per pair"})))
    assert "nats per pair" in pairs
    assert "perplexity" not in pairs
    assert "per token" not in pairs
    assert "nats per token" in plain_text(page_of(make_run("b", records=records)))
