"""The callback that looks at each iteration, and says once and by name what is amiss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mt_core import CallbackContext, Control, MtConfig, MtError, StepLines, StepRecord

from ..scores import figure_of
from .conditions import Above, Change, Condition, Divergence, State

FILE = "alarms.jsonl"
AlarmName = Literal[
    "no-spread", "truncated", "unscored", "repetition", "length", "entropy", "kl", "held-out", "watched"
]


class RolloutAlarmsConfig(MtConfig):
    """Bounds of alarms, each under the alarm's name; none turns one off."""

    iterations: int = Field(
        10, gt=0, description="iterations in a row in which something has to be amiss; the first so many are the start"
    )
    no_spread: float | None = Field(0.8, ge=0, lt=1, description="share of prompts whose answers all score the same")
    truncated: float | None = Field(0.5, ge=0, lt=1, description="share of answers without an end")
    unscored: float | None = Field(0.05, ge=0, lt=1, description="share of answers that a reward cannot score")
    repetition: float | None = Field(
        0.3, ge=0, lt=1, description="share of an answer's 4-grams of tokens that it has had before"
    )
    length: float | None = Field(2.0, gt=1, description="how many times as long as at the start answers are")
    entropy: float | None = Field(0.1, gt=0, lt=1, description="share that is left of the entropy of the start")
    kl: float | None = Field(None, gt=0, description="figure kl; none has no bound")
    held_out: int | None = Field(
        3, ge=2, description="evaluations whose mean eval_reward has fallen since its best, while reward has risen"
    )
    watched: bool = Field(
        True, description="a reward of weight 0 has fallen since its best (means of iterations), while reward has risen"
    )
    stop_on: tuple[AlarmName, ...] = Field((), description="alarms that end the run: [length, held-out]")

    @model_validator(mode="after")
    def _is_on(self) -> Self:
        for name in self.stop_on:
            if getattr(self, _option(name)) in (None, False):
                raise ValueError(f"stop_on names {name}, which is off; set {_option(name)}, or leave it out")
        return self


@dataclass(frozen=True)
class Alarm:
    """A condition with its name, and the sentence to say. A name may have several, each of another ``figure``."""

    name: AlarmName
    condition: Condition
    text: str
    figure: str = ""
    at_evaluations: bool = False

    @property
    def key(self) -> str:
        """Return the name under which the state of its condition is kept."""
        return f"{self.name}:{self.figure}" if self.figure else self.name


BOUNDS: tuple[tuple[AlarmName, str, str], ...] = (
    (
        "no-spread",
        "groups_alike",
        "{value:.0%} of prompts have answers that all score the same, from which nothing is learned: take other prompts, more answers"
        " to each, or a reward with more steps",
    ),
    (
        "truncated",
        "answers_cut",
        "{value:.0%} of answers have no end: raise objective.max-new-tokens, or reward shorter ones",
    ),
    (
        "unscored",
        "answers_unscored",
        "{value:.0%} of answers cannot be scored, and nothing is learned from them: rollouts.jsonl has them with reward null",
    ),
    (
        "repetition",
        "answer_repetition",
        "answers repeat themselves: {value:.0%} of their 4-grams of tokens have come before",
    ),
    (
        "kl",
        "kl",
        "kl is {value:.4g}: the model leaves that of the start; raise what it costs, or lower the rate",
    ),
)
"""Alarms that have a bound: name, figure, and sentence."""
CHANGES: tuple[tuple[AlarmName, str, str], ...] = (
    (
        "length",
        "answer_tokens",
        "answers have {value:.0f} tokens, and {first:.0f} at the start: see whether they are better for it, or take the reward length",
    ),
    (
        "entropy",
        "entropy",
        "entropy is {value:.3g} nats a token, and was {first:.3g} at the start: soon all answers are the same; lower the rate, or raise"
        " objective.clip-high",
    ),
)
"""Alarms that compare with the start: name, figure, and sentence."""
FIGURES = frozenset({"reward", *(figure for _, figure, _ in (*BOUNDS, *CHANGES))})
"""Figures that alarms look at, beside those of single rewards."""
OF_TOKENS = frozenset({"entropy", "kl"})
"""Figures that are means over the tokens of a step."""
FALL_TEXT = "{figure} has fallen from {best:.4g} to {value:.4g} while reward rose from {before:.4g} to {now:.4g}: "


def make_alarms(config: RolloutAlarmsConfig, watched: Sequence[str]) -> Iterator[Alarm]:
    """Yield the alarms that are on; ``watched`` are figures of rewards that do not count."""
    count = config.iterations
    for name, figure, text in BOUNDS:
        if (bound := getattr(config, _option(name))) is not None:
            yield Alarm(name, Above(figure, bound, count), text)
    for name, figure, text in CHANGES:
        if (factor := getattr(config, _option(name))) is not None:
            yield Alarm(name, Change(figure, factor, count), text)
    if config.held_out is not None:
        condition = Divergence("eval_reward", "reward", config.held_out)
        text = FALL_TEXT + "what is learned does not hold for other prompts"
        yield Alarm("held-out", condition, text, "eval_reward", at_evaluations=True)
    for figure in watched if config.watched else ():
        text = FALL_TEXT + "what is rewarded may not be what is wanted"
        yield Alarm("watched", Divergence(figure, "reward", max(2, count)), text, figure)


def _option(name: AlarmName) -> str:
    return name.replace("-", "_")


class RolloutAlarms:
    """Looks at the figures of each iteration once its last step is done; the same on all ranks, so all ask for the same."""

    def __init__(self, config: RolloutAlarmsConfig) -> None:
        self._config = config
        self._alarms: list[Alarm] = []
        self._steps = 1
        self._lines: StepLines | None = None
        self._rung: list[str] = []
        self._states: dict[str, State] = {}
        self._iteration, self._evaluated = _Means(), _Means()

    def on_run_start(self, context: CallbackContext) -> None:
        """Choose the alarms of this run. Raises ``MtError`` where an alarm is to end the run that never comes."""
        watched = _watched(context.config)
        self._alarms = list(make_alarms(self._config, watched))
        objective = context.config.get("objective", {})
        self._steps = int(objective.get("updates", 1)) * int(objective.get("passes", 1))
        lacking = {"held-out": not context.evaluates, "watched": not watched}
        for name in self._config.stop_on:
            if lacking.get(name):
                raise MtError(f"callback rollout-alarms is to stop on {name}, which this run cannot have: {_FIX[name]}")
        if context.output is not None and (context.weights is None or context.weights.rank == 0):
            self._lines = StepLines(context.output / FILE)
            self._lines.cut_back(context.step)

    def on_step_end(self, context: CallbackContext) -> Control | None:
        """Report alarms that are due for the first time."""
        assert context.record is not None, "a step that has ended has a record"
        self._refuse_lack(context.record.metrics)
        figures = _figures(context.record)
        self._iteration.add(figures)
        self._evaluated.add({name: value for name, value in figures.items() if name == "reward"})
        due = []
        if context.step % self._steps == 0:
            due += self._look(self._iteration.take(), at_evaluations=False)
        if "eval_reward" in context.record.evaluation:
            due += self._look(
                self._evaluated.take() | {"eval_reward": context.record.evaluation["eval_reward"]}, at_evaluations=True
            )
        return self._report(context.step, due) if due else None

    def on_run_end(self, context: CallbackContext) -> None:
        """Write lines that could not be written so far, and close the file."""
        if self._lines is not None:
            self._lines.close()

    def on_exception(self, context: CallbackContext) -> None:
        """Close the file."""
        self.on_run_end(context)

    def state_dict(self) -> dict[str, Any]:
        """Return alarms that have rung, states of conditions, and sums of the iteration that is under way."""
        sums = {"iteration": self._iteration.sums, "evaluated": self._evaluated.sums}
        return {"rung": list(self._rung), "states": dict(self._states), **sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on looking; what has rung does not ring again."""
        self._rung, self._states = list(state["rung"]), dict(state["states"])
        self._iteration, self._evaluated = _Means(state["iteration"]), _Means(state["evaluated"])

    def _refuse_lack(self, figures: Mapping[str, float]) -> None:
        if "reward" not in figures:
            raise MtError(
                "callback rollout-alarms looks at answers that a run learns from, and the records of this one have no reward; leave"
                " it out, or choose an objective such as grpo"
            )
        # kl is on only where somebody asks for it, and a watched reward may score nothing now
        for alarm in self._alarms:
            asked = alarm.name in (*self._config.stop_on, "kl") and alarm.name not in ("held-out", "watched")
            if asked and alarm.condition.figure not in figures:
                raise MtError(
                    f"callback rollout-alarms is asked for {alarm.name}, and the objective of this run gives no figure"
                    f" {alarm.condition.figure}; leave it out, or choose options with which there is one"
                )

    def _look(self, figures: Mapping[str, float], *, at_evaluations: bool) -> list[tuple[Alarm, str]]:
        """Ask each condition, and return those that hold for the first time, with what there is to say."""
        due = []
        for alarm in self._alarms:
            if alarm.at_evaluations != at_evaluations or alarm.key in self._rung:
                continue
            self._states[alarm.key], found = alarm.condition.look(self._states.get(alarm.key, {}), figures)
            if found:
                self._rung.append(alarm.key)
                due.append((alarm, alarm.text.format(figure=alarm.figure, **found)))
        return due

    def _report(self, step: int, due: Sequence[tuple[Alarm, str]]) -> Control:
        if self._lines is not None:
            self._lines.append({"step": step, "alarm": alarm.name, "text": text} for alarm, text in due)
        said = "; ".join(f"{alarm.name}: {text}" for alarm, text in due)
        ends = [alarm.name for alarm, _ in due if alarm.name in self._config.stop_on]
        end = f"; the run ends by stop_on={ends[0]}" if ends else ""
        return Control(stop=bool(ends), say=f"step {step}: {said}{end}")


_FIX = {
    "held-out": "set data.eval to prompts that are held out",
    "watched": "give a reward the weight 0, which only reports it",
}


class _Means:
    """Means of figures over the steps since they were taken last."""

    def __init__(self, sums: Mapping[str, Sequence[float]] = {}) -> None:
        self.sums: dict[str, list[float]] = {name: list(pair) for name, pair in sums.items()}

    def add(self, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = [total + value, count + 1]

    def take(self) -> dict[str, float]:
        means = {name: total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        return means


def _figures(record: StepRecord) -> dict[str, float]:
    """Return the figures that alarms look at; one that is no number counts as one that is not there, and so does a mean of no tokens."""
    means = [record.metrics.get(name, 0.0) for name in ("ratio", *OF_TOKENS)]
    learned = any(means)  # the ratio of a token is above 0, though a product of many may be too small for a float
    return {
        name: value
        for name, value in record.metrics.items()
        if (name in FIGURES or name.startswith("reward_"))
        and math.isfinite(value)
        and (learned or name not in OF_TOKENS)
    }


def _watched(config: Mapping[str, Any]) -> list[str]:
    """Return the figures of rewards that do not count in the sum."""
    return [figure_of(each["name"]) for each in config.get("rewards", ()) if each.get("weight") == 0]


def alarm_files(config: RolloutAlarmsConfig) -> tuple[str, ...]:
    """Return the files that the callback writes into a run's folder."""
    return (FILE,)
