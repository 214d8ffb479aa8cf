"""The part of the page with answers that a model has learned from: those to one prompt, over time."""

from __future__ import annotations

from collections.abc import Sequence

from mt_tools.report.markup import Markup, element, join
from mt_tools.report.rollouts import Answer, Moment
from mt_tools.report.run import Run
from mt_tools.report.sections import NONE, per_run, section
from mt_tools.report.summary import number

_CONTROL_NAMES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters, which an untrained model writes and no page shows, as Python spells them."""


def answers(runs: Sequence[Run]) -> Markup:
    """Show a few prompts, each with what the model wrote at several iterations, the first prompt open."""
    return section("answers", "Answers over time", *per_run(runs, [_answers_of(run) for run in runs]))


def _answers_of(run: Run) -> Markup:
    if run.rollouts.repeats:
        histories = run.rollouts.histories()
        return join(*(_history(row_id, moments, open_=place == 0) for place, (row_id, moments) in enumerate(histories)))
    moments = run.rollouts.firsts.moments()
    if not moments:
        return NONE
    note = element(
        "p", "No prompt has come twice yet; these are the first ones of several iterations.", class_="detail"
    )
    return join(note, element("div", *(_row(moment, with_prompt=True) for moment in moments), class_="card moments"))


def _history(row_id: str, moments: Sequence[Moment], *, open_: bool) -> Markup:
    prompt = next((moment.prompt for moment in moments if moment.prompt), "")
    name = element("code", _line(prompt)) if prompt.strip() else row_id
    title = element("summary", name, element("span", f" {row_id}" if prompt.strip() else "", class_="detail"))
    whole = element("pre", _plain(prompt), class_="wrap prompt") if len(_line(prompt)) < len(prompt.strip()) else NONE
    return element(
        "details", title, whole, element("div", *(_row(moment) for moment in moments), class_="moments"), open=open_
    )


def _line(text: str, most: int = 70) -> str:
    """Return the beginning of a text, as far as it goes into a line."""
    line = _plain(" ".join(text.split()))
    return line if len(line) <= most else f"{line[:most]}…"


def _row(moment: Moment, *, with_prompt: bool = False) -> Markup:
    """Show one iteration: when it was and how good, the best answer, and the worst one where it is another."""
    mean = "no score" if moment.mean is None else f"reward {number(moment.mean)}"
    count = f"{moment.count:,} answer" + ("s" if moment.count > 1 else "")
    if 0 < moment.scored < moment.count:
        count = f"{moment.scored:,} of {count}"
    when = join(
        element("strong", f"Step {moment.step:,}"),
        element("span", mean),
        element("span", f"mean of {count}" if moment.scored else count, class_="detail"),
        element("span", moment.row_id, class_="detail") if with_prompt else NONE,
    )
    prompt = element("pre", _plain(moment.prompt), class_="wrap prompt") if with_prompt and moment.prompt else NONE
    alone = moment.best == moment.worst
    shown = [_answer("Answer", moment.best, alone=True)]
    if not alone:
        shown = [_answer("Best answer", moment.best), _answer("Worst answer", moment.worst)]
    return element("article", element("div", when, class_="when"), prompt, *shown, class_="moment")


def _answer(label: str, answer: Answer, *, alone: bool = False) -> Markup:
    scores = ["no score" if answer.reward is None else number(answer.reward)]
    if len(answer.rewards) > 1:
        scores += [f"{name} {'–' if score is None else number(score)}" for name, score in answer.rewards.items()]
    scores += ["no end"] if answer.is_cut else []
    head = element("h4", label, " ", element("span", " · ".join(scores), class_="scores"))
    text = (
        element("pre", _plain(answer.text), class_="wrap text")
        if answer.text
        else element("p", "(empty)", class_="detail")
    )
    return element("div", head, text, class_="answer alone" if alone else "answer")


def _plain(text: str) -> str:
    return text.translate(_CONTROL_NAMES)
