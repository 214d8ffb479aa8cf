"""Alarms of a run: each once and by name, at the bounds that are set, the same after a resume; and in runs as a user starts them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from mt_core import CallbackContext, Control, MtError, StepRecord
from mt_plugin_alignment.alarms.callback import AlarmName, RolloutAlarms, RolloutAlarmsConfig, make_alarms
from mt_train import load_config
from mt_train.checkpoint.store import CheckpointStore, verify
from mt_train.cli.train import main

CALM = {
    "reward": 0.5,
    "groups_alike": 0.1,
    "answers_cut": 0.1,
    "answers_unscored": 0.0,
    "answer_repetition": 0.0,
    "answer_tokens": 20.0,
    "entropy": 1.0,
    "kl": 0.01,
}
NAMES = get_args(AlarmName)
OBJECTIVE = {"name": "grpo", "updates": 1, "passes": 1}


def config_of(rewards: Sequence[Mapping[str, Any]] = (), objective: Mapping[str, Any] = OBJECTIVE) -> dict[str, Any]:
    return {"objective": dict(objective), "rewards": list(rewards)}


def begun(
    alarms: RolloutAlarms, *, step: int = 0, output: Path | None = None, evaluates: bool = True, **config: Any
) -> RolloutAlarms:
    alarms.on_run_start(
        CallbackContext(step=step, total_steps=999, output=output, config=config_of(**config), evaluates=evaluates)
    )
    return alarms


def after(step: int, figures: Mapping[str, float]) -> CallbackContext:
    measured = {name: value for name, value in figures.items() if not name.startswith("eval_")}
    held_out = {name: value for name, value in figures.items() if name.startswith("eval_")}
    record = StepRecord(step, 0.0, 0.1, 1.0, 9, 1.0, 1.0, 0.0, {**CALM, **measured}, held_out)
    return CallbackContext(step=step, total_steps=999, output=None, record=record)


def ring(alarms: RolloutAlarms, series: Iterable[Mapping[str, float]], start: int = 1) -> list[tuple[int, Control]]:
    """The steps after which something is said."""
    asked = [(step, alarms.on_step_end(after(step, figures))) for step, figures in enumerate(series, start)]
    return [(step, control) for step, control in asked if control is not None]


def rising(count: int) -> list[float]:
    return [number / count for number in range(count)]


AMISS: dict[str, list[dict[str, float]]] = {
    "no-spread": [{"groups_alike": 0.81}] * 30,
    "truncated": [{"answers_cut": 0.51}] * 30,
    "unscored": [{"answers_unscored": 0.06}] * 30,
    "repetition": [{"answer_repetition": 0.31}] * 30,
    "length": [{"answer_tokens": 10.0}] * 10 + [{"answer_tokens": 20.1}] * 20,
    "entropy": [{"entropy": 2.0}] * 10 + [{"entropy": 0.19}] * 20,
    "kl": [{"kl": 0.11}] * 30,
    "held-out": [{"reward": n, "eval_reward": 0.5 - n} for n in rising(30)],
    "watched": [{"reward": n, "reward_exact_match": 0.5 - n} for n in rising(30)],
}
"""Series in which one alarm is due, and no other."""
FINE: dict[str, list[dict[str, float]]] = {
    "no-spread": [{"groups_alike": 0.8}] * 30,
    "truncated": [{"answers_cut": 0.5}] * 30,
    "unscored": [{"answers_unscored": 0.05}] * 30,
    "repetition": [{"answer_repetition": 0.3}] * 30,
    "length": [{"answer_tokens": 10.0}] * 10 + [{"answer_tokens": 20.0}] * 20,
    "entropy": [{"entropy": 2.0}] * 10 + [{"entropy": 0.2}] * 20,
    "kl": [{"kl": 0.1}] * 30,
    "held-out": [{"reward": n, "eval_reward": n / 2} for n in rising(30)],
    "watched": [{"reward": n, "reward_exact_match": n / 2} for n in rising(30)],
}
WATCHED = [{"name": "exact-match", "weight": 0.0}, {"name": "other", "weight": 1.0}]


@pytest.mark.parametrize("name", NAMES)
def test_each_rings_once_and_by_its_name(name: str) -> None:
    said = ring(begun(RolloutAlarms(RolloutAlarmsConfig(kl=0.1)), rewards=WATCHED), AMISS[name])
    assert len(said) == 1, said
    step, control = said[0]
    assert control.say.startswith(f"step {step}: {name}: ")
    assert not control.stop
    expected = {"length": 20, "entropy": 20}.get(name, 10)
    assert step == expected or name in ("held-out", "watched")


@pytest.mark.parametrize("name", NAMES)
def test_at_the_bound_itself_nothing_rings(name: str) -> None:
    assert not ring(begun(RolloutAlarms(RolloutAlarmsConfig(kl=0.1)), rewards=WATCHED), FINE[name])


def test_a_step_that_learns_from_no_token_has_no_entropy() -> None:
    """All answers are masked, or not scored: what is 0 then is the mean of nothing."""
    alarms = begun(RolloutAlarms(RolloutAlarmsConfig(kl=0.1)))
    assert not ring(alarms, [{"entropy": 2.0, "ratio": 1.0}] * 10 + [{"entropy": 0.0, "kl": 0.0, "ratio": 0.0}] * 20)
    held = [{"kl": 0.2, "ratio": 1.0}, {"entropy": 0.0, "kl": 0.0, "ratio": 0.0}] * 10
    ((step, control),) = ring(alarms, held, start=31)
    assert (step, "kl: kl is 0.2" in control.say) == (49, True)


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_turned_off_or_end_the_run(name: str) -> None:
    option = name.replace("-", "_")
    off = {option: False if name == "watched" else None}
    assert not ring(begun(RolloutAlarms(RolloutAlarmsConfig(**off)), rewards=WATCHED), AMISS[name])
    with pytest.raises(ValidationError, match=f"stop_on names {name}, which is off; set {option}"):
        RolloutAlarmsConfig(**off, stop_on=(name,))
    ends = begun(RolloutAlarms(RolloutAlarmsConfig(kl=0.1, stop_on=(name,))), rewards=WATCHED)
    ((_, control),) = ring(ends, AMISS[name])
    assert control.stop
    assert control.say.endswith(f"the run ends by stop_on={name}")


def test_several_that_are_due_at_once_are_told_together() -> None:
    alarms = begun(RolloutAlarms(RolloutAlarmsConfig(stop_on=("unscored",))))
    ((_, control),) = ring(alarms, [{"answers_unscored": 1.0, "answers_cut": 1.0}] * 30)
    assert control.stop
    assert "truncated: 100% of answers have no end" in control.say
    assert "unscored: 100% of answers cannot be scored" in control.say


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stopped", [1, 9, 10, 11, 20, 29])
def test_a_resumed_run_rings_where_one_that_was_not_stopped_does(name: str, stopped: int) -> None:
    config = RolloutAlarmsConfig(kl=0.1, stop_on=(name,))
    whole = begun(RolloutAlarms(config), rewards=WATCHED)
    first, second = begun(RolloutAlarms(config), rewards=WATCHED), RolloutAlarms(config)
    expected = ring(whole, AMISS[name])
    found = ring(first, AMISS[name][:stopped])
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    found += ring(begun(second, step=stopped, rewards=WATCHED), AMISS[name][stopped:], stopped + 1)
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert len(found) == 1
    assert second.state_dict() == whole.state_dict()


def test_iterations_of_several_steps_are_looked_at_as_one() -> None:
    """The mean of their steps counts, also where a run was stopped among these; 10 iterations are 40 steps."""
    wild = [{"answers_cut": value} for value in (1.0, 1.0, 0.0, 0.2)] * 20
    objective = {"name": "grpo", "updates": 2, "passes": 2}
    ((step, control),) = ring(begun(RolloutAlarms(RolloutAlarmsConfig()), objective=objective), wild)
    assert (step, "truncated: 55% of answers" in control.say) == (40, True)
    half = begun(RolloutAlarms(RolloutAlarmsConfig()), objective=objective)
    ring(half, wild[:38])
    other = RolloutAlarms(RolloutAlarmsConfig())
    other.load_state_dict(json.loads(json.dumps(half.state_dict())))
    assert [step for step, _ in ring(begun(other, step=38, objective=objective), wild[38:], 39)] == [40]


def test_each_watched_reward_has_its_own_alarm() -> None:
    rewards = [{"name": name, "weight": 0.0} for name in ("one", "two")]
    series = [{"reward": n, "reward_one": -n, "reward_two": -n if n > 0.5 else 0.0} for n in rising(60)]
    said = ring(begun(RolloutAlarms(RolloutAlarmsConfig()), rewards=rewards), series)
    assert [("reward_one" in control.say, "reward_two" in control.say) for _, control in said] == [
        (True, False),
        (False, True),
    ]


def test_evaluations_are_compared_with_the_reward_since_the_one_before() -> None:
    """Every fifth step is evaluated; what the reward was in between counts."""
    series = [
        {"reward": n} | ({"eval_reward": 0.5 - n} if step % 5 == 0 else {}) for step, n in enumerate(rising(60), 1)
    ]
    ((step, control),) = ring(begun(RolloutAlarms(RolloutAlarmsConfig())), series)
    assert step % 5 == 0
    assert "held-out: eval_reward has fallen from" in control.say


def test_what_never_comes_is_an_error_before_it_is_waited_for() -> None:
    stops = RolloutAlarmsConfig(stop_on=("held-out",))
    with pytest.raises(MtError, match=r"to stop on held-out, which this run cannot have: set data.eval"):
        begun(RolloutAlarms(stops), evaluates=False)
    with pytest.raises(MtError, match="to stop on watched, which this run cannot have: give a reward the weight 0"):
        begun(RolloutAlarms(RolloutAlarmsConfig(stop_on=("watched",))), rewards=WATCHED[1:])
    record = StepRecord(1, 0.0, 0.1, 1.0, 9, 1.0, 1.0, 0.0, {"accuracy": 0.5})
    plain = CallbackContext(step=1, total_steps=9, output=None, record=record)
    with pytest.raises(MtError, match="the records of this one have no reward; leave it out"):
        begun(RolloutAlarms(RolloutAlarmsConfig())).on_step_end(plain)
    record = StepRecord(1, 0.0, 0.1, 1.0, 9, 1.0, 1.0, 0.0, {"reward": 0.5})
    without = CallbackContext(step=1, total_steps=9, output=None, record=record)
    for config, figure in (({"kl": 0.1}, "kl"), ({"stop_on": ("no-spread",)}, "groups_alike")):
        with pytest.raises(MtError, match=f"the objective of this run gives no figure {figure}; leave it out"):
            begun(RolloutAlarms(RolloutAlarmsConfig(**config))).on_step_end(without)
    assert begun(RolloutAlarms(RolloutAlarmsConfig())).on_step_end(without) is None


def test_a_watched_reward_that_scores_no_answer_of_an_iteration_is_passed_over() -> None:
    seen = AMISS["watched"]
    series: list[dict[str, float]] = [{}, *(each for pair in zip(seen, [{}] * len(seen), strict=True) for each in pair)]
    alarms = begun(RolloutAlarms(RolloutAlarmsConfig(stop_on=("watched",))), rewards=WATCHED)
    ((_, control),) = ring(alarms, series)
    assert control.stop


def test_a_figure_that_is_no_number_is_as_if_it_were_not_there() -> None:
    alarms = begun(RolloutAlarms(RolloutAlarmsConfig()))
    series = [{"answers_cut": 1.0 if step % 2 else float("nan")} for step in range(30)]
    assert [step for step, _ in ring(alarms, series)] == [20]
    json.dumps(alarms.state_dict(), allow_nan=False)
    nothing = [{"reward": float("nan"), "entropy": float("inf"), "eval_reward": 0.1}] * 30
    assert not ring(begun(RolloutAlarms(RolloutAlarmsConfig(stop_on=("entropy",)))), nothing)


def test_every_alarm_has_an_option_and_a_sentence() -> None:
    alarms = list(make_alarms(RolloutAlarmsConfig(kl=1.0), ["reward_a", "reward_b"]))
    assert {alarm.name for alarm in alarms} == set(NAMES)
    assert len({alarm.key for alarm in alarms}) == len(alarms) == len(NAMES) + 1
    assert {name.replace("-", "_") for name in NAMES} | {"iterations", "stop_on"} == set(
        RolloutAlarmsConfig.model_fields
    )


def test_a_run_that_goes_on_keeps_the_lines_of_alarms_up_to_there(tmp_path: Path) -> None:
    alarms = begun(RolloutAlarms(RolloutAlarmsConfig()), output=tmp_path)
    ring(alarms, [{"answers_cut": 1.0}] * 10 + [{"answers_cut": 1.0, "answers_unscored": 1.0}] * 10)
    alarms.on_run_end(after(20, {}))
    lines = [json.loads(line) for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    assert [(line["step"], line["alarm"]) for line in lines] == [(10, "truncated"), (20, "unscored")]
    assert lines[0]["text"].startswith("100% of answers have no end")
    begun(RolloutAlarms(RolloutAlarmsConfig()), step=15, output=tmp_path)
    assert len((tmp_path / "alarms.jsonl").read_text().splitlines()) == 1


# ------------------------------------------------------------------------------------------------------------- as a user

Train = Callable[..., tuple[int, str]]
RING = ["--callbacks.rollout-alarms.iterations", "2", "--callbacks.rollout-alarms.no-spread", "none"]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Train:
    """``mt-train`` on prompts whose answers are nearly all cut: the exit code, and all that was printed."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"{n}: "}) + "\n" for n in range(12)))
    words = ["--model", "llama", "--model.dim", "16", "--model.n-layers", "1", "--model.n-heads", "2"]
    words += ["--model.n-kv-heads", "2", "--dataset", "jsonl", "--dataset.path", "prompts.jsonl", "--data.eval", "none"]
    words += ["--objective", "grpo", "--objective.prompts", "2", "--objective.group", "2", "--rewards", "pattern"]
    words += ["--objective.max-new-tokens", "3", "--rewards.pattern.pattern", "e", "--checkpoint.every-steps", "1"]

    def run(*more: str, fresh: bool = True) -> tuple[int, str]:
        code = main([*(words if fresh else []), *more])
        written = capsys.readouterr()
        return code, " ".join((written.out + written.err).split())

    return run


def test_a_run_that_learns_from_answers_has_alarms_unless_it_says_none(train: Train) -> None:
    code, said = train("--train.steps", "2", "--output", "run", *RING)
    assert code == 0, said
    assert said.count("rollout-alarms: step 2: truncated:") == 1
    assert json.loads(Path("run/alarms.jsonl").read_text())["alarm"] == "truncated"
    code, said = train("--train.steps", "2", "--output", "quiet", "--callbacks", "none")
    assert code == 0, said
    assert "rollout-alarms" not in Path("quiet/run.yaml").read_text()
    code, said = train("--resume", "quiet", "--train.steps", "4", fresh=False)
    assert code == 0, said
    assert "rollout-alarms" not in Path("quiet/run.yaml").read_text(), "what was none stays so"
    assert train("--train.steps", "2", "--output", "run", "--overwrite")[0] == 0, (
        "rollouts and alarms are the run's own"
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {"rollout-alarms": 0.5}),
        ({"callbacks": {"rollout-alarms": {"truncated": 0.9}}}, {"rollout-alarms": 0.9}),
        ({"callbacks": [{"name": "rollout-alarms", "truncated": None}]}, {"rollout-alarms": None}),
        ({"callbacks": "rollout-alarms"}, {"rollout-alarms": 0.5}),
        ({"callbacks": "none"}, {}),
        ({"callbacks": None}, {}),
        ({"callbacks": []}, {}),
    ],
    ids=str,
)
def test_what_a_user_says_of_callbacks_wins_over_what_the_objective_suggests(
    said: dict[str, Any], expected: dict[str, Any]
) -> None:
    raw = {"model": "llama", "objective": "grpo", "rewards": [{"name": "pattern", "pattern": "e"}], **said}
    config = load_config(raw)
    assert {each.name: each.options.truncated for each in config.callbacks} == expected
    assert load_config(config.as_raw()) == config, "also when it is read again from run.yaml"
    plain = load_config({"model": "llama", **({} if expected else said)})
    assert not plain.callbacks


def test_an_alarm_that_ends_a_run_does_not_end_it_again_when_it_goes_on(train: Train) -> None:
    stop = ["--callbacks.rollout-alarms.stop-on", "[truncated]"]
    code, said = train("--train.steps", "4", "--output", "run", *RING, *stop)
    assert code == 0, said
    assert "the run ends by stop_on=truncated" in said
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 2
    code, said = train("--resume", "run", "--train.steps", "6", fresh=False)
    assert code == 0, said
    assert "truncated" not in said
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 6
    assert len(Path("run/alarms.jsonl").read_text().splitlines()) == 1


def test_a_run_that_goes_on_says_what_one_that_was_not_stopped_says(train: Train) -> None:
    words = ["--train.steps", "4", "--objective.updates", "2", "--checkpoint.keep-last", "9"]
    code, said = train(*words, "--output", "whole", *RING)
    assert code == 0, said
    assert said.count("truncated:") == 1
    shutil.copytree("whole", "half")
    for step in (4,):
        shutil.rmtree(f"half/checkpoints/step-{step:08d}")
    Path("half/completed").unlink()
    code, said = train("--resume", "half/checkpoints/step-00000003", fresh=False)
    assert code == 0, said
    assert said.count("truncated:") == 1
    assert Path("half/alarms.jsonl").read_text() == Path("whole/alarms.jsonl").read_text()
    states = [verify(max(CheckpointStore(Path(name)).list())[1])["callbacks"] for name in ("whole", "half")]
    assert states[0] == states[1]
    assert states[0]["rollout-alarms"]["rung"] == ["truncated"]


def test_seconds_are_told_once_an_iteration_and_by_what_they_were_spent_on(train: Train) -> None:
    code, said = train("--train.steps", "4", "--objective.updates", "2", "--output", "run")
    assert code == 0, said
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    told = [{name for name in record if name.endswith("_seconds")} - {"data_wait_seconds"} for record in records]
    parts = {"write_seconds", "score_seconds", "measure_seconds"}
    assert told == [{"rollout_seconds", *parts}, set()] * 2
    for record in records[::2]:
        assert 0 < sum(record[name] for name in parts) <= record["rollout_seconds"] <= record["data_wait_seconds"]
    assert not any("seconds" in json.loads(line) for line in Path("run/rollouts.jsonl").read_text().splitlines())


def test_an_answer_has_its_prompt_as_text_and_its_reward(train: Train) -> None:
    Path("mine.py").write_text(
        "def score(answers):\n    return [None if number else 2.0 for number in range(len(answers))]\n"
    )
    more = ["--rewards", "pattern,python", "--rewards.python.path", "mine.py", "--rewards.python.weight", "0.5"]
    code, said = train("--train.steps", "1", "--output", "run", *more)
    assert code == 0, said
    for line in map(json.loads, Path("run/rollouts.jsonl").read_text().splitlines()):
        number = int(line["row_id"].rpartition(":")[2]) - 1
        assert line["prompt_text"] == f"{number}: "
        own, other = line["rewards"]["python"], line["rewards"]["pattern"]
        absent = other if line["group"] else None  # of the first prompt it scores one answer, of the others none
        assert line["reward"] == (absent if own is None else other + 1.0)
