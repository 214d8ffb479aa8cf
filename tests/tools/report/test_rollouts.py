"""Answers that a model learned from, and its alarms: a few prompts over time, from a file of any size, and their figures."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from mt_tools.report.charts import charts_of
from mt_tools.report.page import page
from mt_tools.report.rollouts import CANDIDATES, MAX_MOMENTS, MAX_PROMPTS, Moment, read_rollouts
from mt_tools.report.run import read_run

MakeRun = Callable[..., Path]
Record = Callable[..., dict[str, Any]]
EVIL = "</script><img src=x onerror=alert(1)>"


def answer(iteration: int, row_id: str = "rows:1", reward: float | None = 0.5, **more: Any) -> dict[str, Any]:
    usual = {
        "row_id": row_id,
        "group": 0,
        "prompt": [1, 2],
        "prompt_text": f"What of {row_id}?",
        "ids": [3],
        "text": "So.",
    }
    scores = {"finish": "eos", "reward": reward, "rewards": {"exact": reward}}
    return {"step": 2 * iteration + 1, "iteration": iteration, **usual, **scores, **more}


def page_of(*folders: Path) -> str:
    return page([read_run(folder, folder.name) for folder in folders])


def section(html: str) -> str:
    found = re.search(r'<section id="answers".*?</section>', html, re.DOTALL)
    return "" if found is None else found[0]


def text(html: str) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)))


def moments_of(path: Path, lines: Sequence[dict[str, Any]]) -> list[tuple[str, list[Moment]]]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_rollouts(path).histories()


def test_a_prompt_is_shown_with_its_best_and_worst_answer_at_each_iteration(make_run: MakeRun) -> None:
    lines = [
        answer(0, reward=0.25, text="first try"),
        answer(0, reward=0.75, text="second try", finish="length"),
        answer(0, reward=None, text="never scored"),
        answer(3, reward=1.0, text="same"),
        answer(3, reward=1.0, text="same"),
    ]
    shown = text(section(page_of(make_run(rollouts=lines))))
    assert "What of rows:1? rows:1" in shown
    assert (
        "Step 1 reward 0.5 mean of 2 of 3 answers Best answer 0.75 · no end second try Worst answer 0.25 first try"
        in shown
    )
    assert "Step 7 reward 1 mean of 2 answers Answer 1 same" in shown
    assert "never scored" not in shown


def test_an_answer_that_called_tools_is_shown_with_its_turns(make_run: MakeRun) -> None:
    call = {"id": "call00001", "type": "function", "function": {"name": "price", "arguments": {"item": "tea"}}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "price", "tool_call_id": "call00001", "content": "2.0"},
        {"role": "assistant", "content": "Two."},
    ]
    shown = text(section(page_of(make_run(rollouts=[answer(0, text="Two.", calls=1, turns=turns)]))))
    assert 'Answer 0.5 {"name": "price", "arguments": {"item": "tea"}} → 2.0 Two.' in shown


def test_sources_of_a_reward_are_told_beside_the_sum(make_run: MakeRun) -> None:
    lines = [answer(n, reward=1.5, rewards={"exact": 1.0, "polite": 0.5, "other": None}) for n in (0, 1)]
    assert "Answer 1.5 · exact 1 · polite 0.5 · other – So." in text(section(page_of(make_run(rollouts=lines))))


def test_answers_that_nobody_can_score_are_shown_as_such(make_run: MakeRun) -> None:
    lines = [answer(n, reward=None, text=f"try {n}") for n in (0, 1)]
    assert "Step 1 no score 1 answer Answer no score try 0" in text(section(page_of(make_run(rollouts=lines))))


def test_text_is_never_markup_and_what_no_page_shows_is_spelled(make_run: MakeRun) -> None:
    words = {"text": f"{EVIL}\x00\x1b[1m\x85", "prompt_text": EVIL, "row_id": EVIL}
    lines = [answer(n, **words, rewards={EVIL: 1.0, "b": 0.0}) for n in (0, 1)]
    html = page_of(make_run(rollouts=lines))
    assert "<img" not in html
    assert text(section(html)).count(EVIL) >= 5
    assert r"\x00\x1b[1m\x85" in section(html)


def test_a_prompt_without_text_is_known_by_its_row(make_run: MakeRun) -> None:
    """As of programs that write ids alone."""
    lines = [answer(n) for n in (0, 1)]
    for line in lines:
        del line["prompt_text"], line["reward"]
    shown = text(section(page_of(make_run(rollouts=lines))))
    assert "rows:1" in shown
    assert "Answer 0.5 So." in shown, "one source is the reward"


def test_prompts_that_came_most_often_are_shown_and_of_these_the_first(tmp_path: Path) -> None:
    rows = ["often", *(f"rows:{n}" for n in range(9))]
    lines = [answer(0, row) for row in rows] + [answer(1, "rows:7"), answer(1, "often"), answer(2, "often")]
    assert [row for row, _ in moments_of(tmp_path / "x.jsonl", lines)] == ["often", "rows:7", "rows:0", "rows:1"]


@pytest.mark.parametrize("count", [1, 2, MAX_MOMENTS, MAX_MOMENTS + 1, 33, 100, 1777])
def test_iterations_are_shown_from_the_first_to_the_last_about_as_far_apart(tmp_path: Path, count: int) -> None:
    ((_, moments),) = moments_of(tmp_path / "x.jsonl", [answer(number) for number in range(count)])
    shown = [moment.iteration for moment in moments]
    assert len(shown) == min(count, MAX_MOMENTS)
    assert (shown[0], shown[-1]) == (0, count - 1)
    even = [place * (count - 1) / max(1, len(shown) - 1) for place in range(len(shown))]
    assert all(abs(number - wanted) <= max(1, count / 16) for number, wanted in zip(shown, even, strict=True))


def test_where_no_prompt_comes_twice_the_first_of_iterations_are_shown(make_run: MakeRun) -> None:
    """As in most runs over many prompts, and longer than the prompts that are followed."""
    lines = [answer(n // 4, f"rows:{n}", text=f"wrote {n}") for n in range(8 * CANDIDATES) for _ in range(2)]
    shown = text(section(page_of(make_run(rollouts=lines))))
    last = 8 * CANDIDATES - 4
    assert "No prompt has come twice yet" in shown
    assert "wrote 0" in shown
    assert f"mean of 2 answers rows:{last} What of rows:{last}? Answer 0.5 wrote {last}" in shown
    assert f"wrote {last + 1}" not in shown


def test_an_answer_keeps_its_end(make_run: MakeRun) -> None:
    lines = [answer(n, text="begin " + "x" * 9000 + " the end") for n in (0, 1)]
    html = section(page_of(make_run(rollouts=lines)))
    assert "begin xxx" in html
    assert "… (8,414 more letters) …" in html
    assert "the end</pre>" in html
    assert html.count("x" * 100) == 2 * (3 + 1), (
        "in each of two iterations three hundred at the begin, and one at the end"
    )


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '"x"',
        "null",
        json.dumps({"step": 1}),
        json.dumps(answer(0) | {"iteration": True}),
        json.dumps(answer(0) | {"step": "1"}),
        json.dumps(answer(0) | {"rewards": 3}),
        "[" * 100_000,
        '{"step": 1, "iteration": 0, "row_id": "x"',
    ],
)
def test_lines_that_are_no_answer_are_counted_and_left_out(make_run: MakeRun, line: str) -> None:
    run = read_run(make_run(rollouts=[answer(0), line, answer(1)]), "run")
    assert run.remarks == ("1 line(s) of rollouts.jsonl are no answer and were left out",)
    assert [len(moments) for _, moments in run.rollouts.histories()] == [2]


def test_odd_values_are_shown_without_a_failure(make_run: MakeRun) -> None:
    odd = [answer(n, reward=1e999, rewards={"a": True, "b": "x", "c": 10**400}, text=None, finish=3) for n in (0, 1)]
    shown = text(section(page_of(make_run(rollouts=odd))))
    assert "no score · a – · b – · c –" in shown
    assert "(empty)" in shown


def test_a_run_without_answers_has_no_section(make_run: MakeRun) -> None:
    assert section(page_of(make_run())) == ""
    assert section(page_of(make_run("b", rollouts=[]))) == ""


def long_file(path: Path, iterations: int) -> Path:
    """16 prompts with 8 answers of 500 tokens in each iteration, as mt-train writes them; no prompt comes twice."""
    ids, words = list(range(500)), "word " * 400

    def lines() -> Iterator[str]:
        for iteration in range(iterations):
            for group in range(16):
                row = f"rows:{iteration * 16 + group}"
                line = json.dumps(answer(iteration, row, ids=ids, text=f"{words}{row}"))
                yield from [line + "\n"] * 8

    with path.open("w") as file:
        file.writelines(lines())
    return path


def test_a_large_file_is_read_in_little_memory_and_makes_a_small_page(make_run: MakeRun) -> None:
    run = make_run(rollouts=[])
    size = long_file(run / "rollouts.jsonl", 60).stat().st_size
    assert size > 30e6
    began = time.perf_counter()
    tracemalloc.start()
    try:
        found = read_rollouts(run / "rollouts.jsonl")
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < 60
    assert most < 3e6
    assert kept < 2e6
    assert found.newest == 59
    with_answers = page_of(run)
    (run / "rollouts.jsonl").unlink()
    assert len(with_answers) - len(page_of(run)) < 30_000
    assert MAX_PROMPTS * MAX_MOMENTS == 32


# ----------------------------------------------------------------------------------------------------------------- figures

FIGURES = {
    "reward": 0.5,
    "reward_exact": 0.4,
    "reward_format_ok": 0.2,
    "score_std": 0.3,
    "score_std_exact": 0.1,
    "answer_tokens": 20.0,
    "answers_cut": 0.1,
    "entropy": 1.0,
    "kl": 0.02,
}


def test_rewards_stand_beside_the_loss_then_what_is_told_of_answers(make_run: MakeRun, record: Record) -> None:
    records = [record(step) | FIGURES | {"own_figure": 1.0, "eval_reward": 0.4, "eval_kl": 0.1} for step in (1, 2)]
    run = make_run(records=records)
    drawn = charts_of([read_run(run, "run")])
    assert [chart.key for chart in drawn] == [
        *("loss", "reward", "reward_exact", "reward_format_ok", "score_std", "score_std_exact", "answer_tokens"),
        *("answers_cut", "entropy", "kl", "lr", "grad_norm", "tokens_per_second", "memory_gib", "data_wait_seconds"),
        "own_figure",
    ]
    titles = {chart.key: (chart.title, chart.held_out) for chart in drawn}
    assert titles["reward_format_ok"] == ("Reward format ok", "eval_reward_format_ok")
    assert titles["score_std_exact"] == ("Spread of exact", "eval_score_std_exact")
    assert titles["kl"] == ("KL", "eval_kl")
    assert 'class="chart card" data-key="loss"' in page_of(run)
    assert 'class="chart card wide" data-key="loss"' in page_of(make_run("plain"))


def test_figures_of_these_names_without_a_reward_are_drawn_as_any_other(make_run: MakeRun, record: Record) -> None:
    run = make_run(records=[record(step) | {"entropy": 1.0, "kl": 0.1} for step in (1, 2)])
    assert [chart.key for chart in charts_of([read_run(run, "run")])][-2:] == ["entropy", "kl"]


def test_the_head_has_the_reward_and_where_the_time_went(make_run: MakeRun, record: Record) -> None:
    """20 steps of 0.2 s each by their tokens; of two iterations of ten steps each one waits 0.5 s."""
    spent = {"rollout_seconds": 0.5, "write_seconds": 0.4, "score_seconds": 0.004, "measure_seconds": 0.08}
    records = [
        record(step)
        | {"tokens_per_second": 10_000.0, "data_wait_seconds": 0.5 if step % 10 == 1 else 0.0, "reward": step / 20}
        | (spent if step % 10 == 1 else {})
        for step in range(1, 21)
    ]
    for each in records:
        each.pop("eval_loss", None)
    shown = text(page_of(make_run(records=records)))
    assert "Reward 1.0000 step 20; 0.05 at step 1, best 1 at step 20" in shown
    assert "Time spent on writing answers 20 %, scoring under 1 %, measuring 4 %, updates 75 %" in shown
    held_out = [each | {"eval_reward": 1 - each["step"] / 40} for each in records]
    shown = text(page_of(make_run("b", records=held_out)))
    assert "Evaluation reward 0.5000 step 20; 0.975 at step 1, best 0.975 at step 1" in shown
    assert "Time spent on" not in text(page_of(make_run("plain")))


def test_alarms_are_remarks_of_the_run(make_run: MakeRun) -> None:
    told = [{"step": 1000 + n, "alarm": "length", "text": f"answers <b> have {n} tokens"} for n in range(60)]
    run = make_run(alarms=[told[0], "{", *told[1:]])
    remarks = read_run(run, "run").remarks
    assert remarks[0] == "step 1,000: length: answers <b> have 0 tokens"
    assert remarks[-2:] == (
        "10 further alarm(s) are not shown; alarms.jsonl has all",
        "1 line(s) of alarms.jsonl are no alarm and were left out",
    )
    assert len(remarks) == 52
    assert "answers &lt;b&gt; have 0 tokens" in page_of(run)


@pytest.mark.parametrize("head", [r'1, "row_id": "a\q"', "1" * 5000 + ', "row_id": "a"'], ids=["row", "iteration"])
def test_a_damaged_beginning_is_counted_also_where_no_more_prompts_are_followed(make_run: MakeRun, head: str) -> None:
    lines: list[Any] = [answer(1, f"rows:{number}") for number in range(CANDIDATES)]
    lines.append(f'{{"step": 3, "iteration": {head}, "text": "So."}}')
    run = read_run(make_run(rollouts=[*lines, answer(2, "rows:0")]), "run")
    assert run.remarks == ("1 line(s) of rollouts.jsonl are no answer and were left out",)
    assert run.rollouts.by_row["rows:0"].seen == 2
