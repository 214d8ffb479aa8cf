"""Charts of the page, their data, and what stands there without a script."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mt_tools.report.markup import Markup, element, table
from mt_tools.report.run import Run
from mt_tools.report.series import Series
from mt_tools.report.summary import number
from mt_train.tracking.plot import SMOOTHING


@dataclass(frozen=True)
class Chart:
    """One chart. ``held_out`` is the key that is drawn on it as points; ``zero`` starts its axis at 0."""

    key: str
    title: str
    unit: str = ""
    held_out: str = ""
    zero: bool = False
    smooth: bool = True


KNOWN = (
    Chart("lr", "Learning rate", zero=True, smooth=False),
    Chart("grad_norm", "Gradient norm", "before clipping", zero=True),
    Chart("tokens_per_second", "Throughput", "tokens per second", zero=True),
    Chart("memory_gib", "Memory", "GiB, peak of one process", zero=True, smooth=False),
    Chart("data_wait_seconds", "Data wait", "seconds a step", zero=True),
    Chart("rollout_seconds", "Rollout", "seconds an iteration", zero=True),
    Chart("write_seconds", "Writing answers", "seconds an iteration", zero=True),
    Chart("score_seconds", "Scoring answers", "seconds an iteration", zero=True),
    Chart("measure_seconds", "Measuring answers", "seconds an iteration", zero=True),
)
"""The keys that every run has beside the loss (``protocols.StepRecord``); what else is found is drawn after them."""

ANSWERS = (
    Chart("score_std", "Spread of rewards", "standard deviation", zero=True),
    Chart("groups_alike", "Prompts without spread", "share whose answers all score the same", zero=True),
    Chart("groups_resampled", "Prompts answered again", "share", zero=True),
    Chart("answer_tokens", "Length of answers", "tokens, mean", zero=True),
    Chart("answer_tokens_most", "Longest answer", "tokens", zero=True),
    Chart("answers_cut", "Answers without an end", "share", zero=True),
    Chart("answer_repetition", "Repetition", "share of 4-grams that came before in the answer", zero=True),
    Chart("answers_unscored", "Answers without a score", "share", zero=True),
    Chart("entropy", "Entropy", "nats per token", zero=True),
    Chart("kl", "KL", "from the model of the start, nats per token"),
    Chart("kl_loss", "Cost of KL", "in the loss"),
    Chart("kl_answer", "KL of an answer", "from the model of the start, nats"),
    Chart("kl_weight", "Weight of KL", zero=True),
    Chart("sampler_ratio", "Ratio to the sampler", "of a token, mean"),
    Chart("sampler_ratio_most", "Ratio to the sampler", "of a token, the most"),
    Chart("explained_variance", "Explained variance", "of returns, by the critic"),
    Chart("value_loss", "Loss of the critic", zero=True),
    Chart("ratio", "Probability ratio", "of a token, to that when it was written"),
    Chart("ratio_far", "Probability ratio above 2 or below ½", "share of tokens", zero=True),
    Chart("clipped_low", "Clipped low", "share of tokens", zero=True),
    Chart("clipped_high", "Clipped high", "share of tokens", zero=True),
)
"""Charts of a run that learns from its own answers, beside its rewards (docs/contract.md)."""

NOT_DRAWN = frozenset({"step", "tokens", "epoch", "seconds"})


def charts_of(runs: Sequence[Run]) -> list[Chart]:
    """Return a chart for every figure that any of the runs has; ``eval_x`` is drawn with ``x`` if there is an ``x``."""
    found = dict.fromkeys(key for run in runs for key in run.curves.series if key not in NOT_DRAWN)
    loss = Chart("loss", "Loss", _loss_unit(runs), held_out="eval_loss")
    candidates = (loss, *_of_answers(found), *KNOWN)
    known = [chart for chart in candidates if chart.key in found or chart.held_out in found]
    taken = {key for chart in known for key in (chart.key, chart.held_out)}
    others = [key for key in found if key not in taken]
    return [*known, *(_other_chart(key, found) for key in others if not _belongs_to_another(key, found))]


def _of_answers(found: Collection[str]) -> Iterator[Chart]:
    """Yield the reward, each of its sources, and what else is known of answers; nothing for a run without a reward."""
    if "reward" not in found:
        return
    yield Chart("reward", "Reward", "mean of answers", held_out="eval_reward")
    yield from (
        _of_source(key, "reward_", "Reward {}", "mean of answers") for key in found if key.startswith("reward_")
    )
    for chart in ANSWERS:
        if chart.key in found:
            yield replace(chart, held_out=f"eval_{chart.key}")
        if chart.key == "score_std":
            names = (key for key in found if key.startswith("score_std_"))
            yield from (_of_source(key, "score_std_", "Spread of {}", chart.unit) for key in names)


def _of_source(key: str, prefix: str, title: str, unit: str) -> Chart:
    name = key.removeprefix(prefix).replace("_", " ")
    return Chart(key, title.format(name), unit, held_out=f"eval_{key}")


def _loss_unit(runs: Sequence[Run]) -> str:
    """Return the unit of the losses of all runs; nothing where they differ."""
    units = {run.loss_unit for run in runs}
    return units.pop() if len(units) == 1 else ""


def _belongs_to_another(key: str, found: dict[str, None]) -> bool:
    return key.startswith("eval_") and key.removeprefix("eval_") in found


def _other_chart(key: str, found: dict[str, None]) -> Chart:
    if key.startswith("eval_"):
        return Chart(key, _title(key.removeprefix("eval_")), "in evaluation", held_out=key)
    return Chart(key, _title(key), held_out=f"eval_{key}" if f"eval_{key}" in found else "")


def _title(key: str) -> str:
    words = key.replace("_", " ").strip() or key
    return words[:1].upper() + words[1:]


def chart_data(runs: Sequence[Run], drawn: Sequence[Chart]) -> dict[str, Any]:
    """Return the data for the page's script. ``average_over`` is in steps, and averages as ``loss.png`` does."""
    keys = {key for chart in drawn for key in (chart.key, chart.held_out) if key}
    return {
        "average_over": round(1 / (1 - SMOOTHING)),
        "charts": [{key: value for key, value in asdict(chart).items() if value != ""} for chart in drawn],
        "runs": [
            {
                "name": run.name,
                "axes": {"tokens": run.curves["tokens"].corners(), "time": run.curves.seconds.corners()},
                "series": {key: series.data() for key, series in run.curves.series.items() if key in keys},
            }
            for run in runs
        ],
    }


def figures(runs: Sequence[Run], drawn: Sequence[Chart]) -> Iterator[Markup]:
    """Return the frames that the script fills, each with a table for readers without scripts; the loss is wide if there is no reward."""
    has_reward = any(chart.key == "reward" for chart in drawn)
    for chart in drawn:
        unit = element("span", f" {chart.unit}", class_="unit") if chart.unit else Markup("")
        caption = element("figcaption", element("h3", chart.title), unit)
        plot = element("div", class_="plot")
        rows = [row for run in runs for row in _rows(run, chart)]
        plain = table(["Run", "first", "middle", "last", "lowest", "highest"], rows, numbers=5)
        wide = " wide" if chart.key == "loss" and not has_reward else ""
        yield element(
            "figure", caption, plot, element("noscript", plain), class_=f"chart card{wide}", data_key=chart.key
        )


def _rows(run: Run, chart: Chart) -> Iterator[list[str]]:
    for key in dict.fromkeys((chart.key, chart.held_out)):
        if key in run.curves.series:
            words = " (evaluation)" if key == chart.held_out else ""
            yield [run.name + words, *_cells(run.curves[key])]


def _cells(series: Series) -> list[str]:
    groups = [(group.first, group.mean) for group in series.groups() if group.mean is not None]
    if not groups:
        return ["–"] * 5
    chosen = [groups[0], groups[len(groups) // 2], series.last or groups[-1]]
    extremes = [point for point in (series.lowest, series.highest) if point is not None]
    return [f"{number(value)} (step {step:,})" for step, value in [*chosen, *extremes]]
