"""The head of a run on the page: how it ended, its losses, what it took, and on what it ran."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mt_core.protocols import NATS_PER_TOKEN
from mt_tools.report.run import Run
from mt_train.tracking.console import duration


@dataclass(frozen=True)
class Fact:
    """One line: a label, a value, and what explains it."""

    label: str
    value: str
    detail: str = ""


def status(run: Run) -> str:
    """``completed``, or how it ended and how far it came."""
    done, total = run.curves.last_step, run.total_steps
    if run.state.word == "completed":
        return f"completed, {done:,} steps"
    return f"{run.state.text} at step {done:,}" + (f" of {total:,}" if total else "")


def end_of(run: Run) -> str:
    """Return what ended a run that is not complete; a run that is killed cannot write it down."""
    if not run.state.is_known:
        return " or still running"
    return f" ({run.state.reason})" if run.state.reason else ""


def headline(run: Run) -> Fact:
    """The one number to look at first: the reward of a run that has one, the held-out loss, or without any the training loss."""
    if reward := _reward(run):
        return reward
    last, best = run.curves["eval_loss"].last, run.curves["eval_loss"].lowest
    if last is None or best is None:
        last = run.curves["loss"].last
        shown = "–" if last is None else f"{last[1]:.4f}"
        return Fact("Training loss", shown, "no evaluation" if last is None else f"step {last[0]:,}, no evaluation")
    return Fact("Evaluation loss", f"{last[1]:.4f}", ", ".join([*_perplexity(run, last[1]), f"step {last[0]:,}"]))


def _reward(run: Run) -> Fact | None:
    """Return the reward of held-out prompts, or without any of those that were trained on: the loss of such a run says little."""
    for key, label in (("eval_reward", "Evaluation reward"), ("reward", "Reward")):
        series = run.curves[key]
        if series.last is not None and series.highest is not None:
            (step, value), (at, best) = series.last, series.highest
            first = next(group for group in series.groups() if group.mean is not None)
            detail = f"step {step:,}; {number(first.mean or 0.0)} at step {first.first:,}, best {number(best)} at step {at:,}"
            return Fact(label, f"{value:.4f}", detail)
    return None


def _perplexity(run: Run, loss: float) -> list[str]:
    """Return the perplexity of a loss that is a mean over tokens; any other one has none."""
    return [f"perplexity {perplexity(loss)}"] if run.loss_unit == NATS_PER_TOKEN else []


def perplexity(loss: float) -> str:
    """e to the loss, which is in nats per token."""
    return number(math.exp(loss)) if loss < 700 else "beyond 1e304"


def facts(run: Run) -> list[Fact]:
    """Everything that is known; what is not is left out."""
    return [*_losses(run), *_effort(run), *_machine(run)]


def _losses(run: Run) -> Iterator[Fact]:
    best = run.curves["eval_loss"].lowest
    if best is not None:
        yield Fact(
            "Best evaluation loss", f"{best[1]:.4f}", ", ".join([f"step {best[0]:,}", *_perplexity(run, best[1])])
        )
        last = run.curves["loss"].last
        if last is not None:
            yield Fact("Training loss", f"{last[1]:.4f}", f"step {last[0]:,}")


def _shares(run: Run) -> Iterator[Fact]:
    """Yield where the time of a run went that writes answers: the parts are of the seconds in steps."""
    whole, waits = run.curves.seconds.last, run.curves["data_wait_seconds"].total
    rollouts = run.curves["rollout_seconds"].total
    if whole is None or not rollouts or whole[1] <= 0:
        return
    names = {"write_seconds": "writing answers", "score_seconds": "scoring", "measure_seconds": "measuring"}
    parts = {words: run.curves[key].total for key, words in names.items() if key in run.curves.series}
    parts = parts or {"rollouts": rollouts}
    parts["updates"] = max(0.0, whole[1] - waits)
    shares = ", ".join(f"{words} {_percent(value / whole[1])}" for words, value in parts.items())
    yield Fact("Time spent on", shares)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.005 else "under 1 %"


def _effort(run: Run) -> Iterator[Fact]:
    tokens, seconds = run.curves["tokens"].last, run.curves.seconds.last
    if tokens:
        yield Fact("Tokens trained", f"{tokens[1]:,.0f}")
    if seconds:
        yield Fact("Time in steps", duration(seconds[1]), "without evaluations and checkpoints")
    yield from _shares(run)
    if tokens and seconds and seconds[1] > 0:
        yield Fact("Throughput", f"{number(tokens[1] / seconds[1])} tokens/s", "mean")
    memory = run.curves["memory_gib"].highest
    if memory:
        yield Fact("Peak memory", f"{memory[1]:.2f} GiB", "of one process")
    if run.checkpoints:
        yield Fact("Checkpoints", ", ".join(f"{step:,}" for step in run.checkpoints[-5:]), "steps that are kept")


def _machine(run: Run) -> Iterator[Fact]:
    model = run.config.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    if told := run.about.get("model") or name:
        yield Fact("Model", str(told))
    if counted := parameters(run.about.get("parameters")):
        yield counted
    for key in ("device", "layout", "attention", "started"):
        if told := run.about.get(key):
            yield Fact(key.capitalize(), str(told).replace("T", " ", 1) if key == "started" else str(told))


def parameters(entries: Any) -> Fact | None:
    """Return how many parameters, how many of them are trained, and in which formats."""
    if not isinstance(entries, list):
        return None
    known = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("count"), int)]
    total = sum(entry["count"] for entry in known)
    if not total:
        return None
    trained = sum(entry["count"] for entry in known if entry.get("trained"))
    formats = ", ".join(dict.fromkeys(str(entry.get("dtype")) for entry in known))
    share = "all trained" if trained == total else f"{trained:,} trained ({100 * trained / total:.2g} %)"
    return Fact("Parameters", f"{total:,}", f"{share}, {formats}")


def number(value: float) -> str:
    """Format a number with at most five digits and commas at thousands."""
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.3e}"
