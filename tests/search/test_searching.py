"""The search itself, on a stand-in for the training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_train
import pytest
from fake_train import STEPS, FakeTrain, loss

from mt_core import ConfigError, MtError, UsageError
from mt_plugin_search.folder import Folder
from mt_plugin_search.process import Order
from mt_plugin_search.request import Search
from mt_plugin_search.searching import SearchResult, begin, go_on, with_options
from mt_plugin_search.study import _open
from mt_plugin_search.table import as_json
from mt_train.command import read_config

Asked = Callable[..., Search]


def values(found: SearchResult) -> list[dict[str, Any]]:
    return [dict(trial.values) for trial in found.trials]


def states(found: SearchResult) -> list[str]:
    return [trial.state for trial in found.trials]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_has_the_same_trials_in_the_same_order_and_another_has_others(
    make_search: Asked, sampler: str
) -> None:
    once = begin(Folder(Path("a")), make_search(trials=12, sampler=sampler, seed=3), FakeTrain())
    again = begin(Folder(Path("b")), make_search(trials=12, sampler=sampler, seed=3), FakeTrain())
    other = begin(Folder(Path("c")), make_search(trials=12, sampler=sampler, seed=4), FakeTrain())
    assert values(once) == values(again)
    assert [trial.evaluations for trial in once.trials] == [trial.evaluations for trial in again.trials]
    assert values(once)[0] != values(other)[0]
    assert len({trial.values["optimizer.lr"] for trial in once.trials}) == 12


def test_the_best_is_the_best_of_all_and_its_config_trains_it_again_without_pruning(make_search: Asked) -> None:
    found = begin(Folder(Path("a")), make_search(trials=12, prune_after=2), FakeTrain())
    complete = [trial for trial in found.trials if trial.state == "complete"]
    assert found.best is not None
    assert found.best.value == min(loss(**arguments(trial.values)) for trial in complete)
    raw = read_config("a/best.yaml")
    assert raw["optimizer"]["lr"] == found.best.values["optimizer.lr"]
    assert raw["train"]["micro_batch_size"] == found.best.values["train.micro_batch_size"]
    assert "callbacks" not in raw
    assert "callbacks" in read_config(f"a/{found.best.run}/run.yaml")


def arguments(found: Any) -> dict[str, float]:
    return {"lr": found["optimizer.lr"], "rows": found["train.micro_batch_size"]}


def test_tpe_comes_nearer_than_its_first_trials(make_search: Asked) -> None:
    """Ten random trials come first; what is drawn after them is where the good ones were."""
    found = begin(Folder(Path("a")), make_search(trials=30, prune="none"), FakeTrain())
    figures = [trial.value or 0.0 for trial in found.trials]
    assert sum(figures[20:]) / 10 < sum(figures[:10]) / 10
    assert min(figures[10:]) < min(figures[:10])


def test_max_means_most(make_search: Asked) -> None:
    found = begin(
        Folder(Path("a")), make_search(trials=6, metric="accuracy:max", prune="none"), FakeTrain(metric="accuracy")
    )
    assert found.best is not None
    assert found.best.value == max(trial.value or 0.0 for trial in found.trials)


@pytest.mark.parametrize("stop_after", [1, 4, 9])
def test_a_search_that_was_stopped_and_resumed_equals_one_that_was_not(make_search: Asked, stop_after: int) -> None:
    wanted = make_search(trials=12, prune_after=2)
    whole = begin(Folder(Path("whole")), wanted, FakeTrain())
    folder = Folder(Path("parts"))
    stopped = begin(folder, wanted, FakeTrain(stop_after=stop_after))
    assert (stopped.stopped, states(stopped)[-1], len(stopped.trials)) == ("another process", "running", stop_after)
    rest = FakeTrain()
    resumed = go_on(folder, folder.read_search(), rest)
    assert values(resumed) == values(whole)
    assert states(resumed) == states(whole)
    assert len(rest.rates) == 12 - stop_after + 1, "finished trials are not repeated, the one that was cut short is"


def test_a_kill_in_the_middle_of_a_line_of_the_journal_or_with_its_lock_held_does_no_harm(make_search: Asked) -> None:
    folder, wanted = Folder(Path("a")), make_search(trials=6)
    begin(folder, wanted, FakeTrain(stop_after=3))
    journal = Path("a/study.journal")
    journal.write_bytes(journal.read_bytes() + b'{"op_code":5,"work')
    lock = Path("a/study.journal.lock")
    lock.symlink_to("study.journal")
    _open(journal)
    assert not lock.is_symlink(), "Optuna would wait for half a minute"
    assert values(go_on(folder, folder.read_search(), FakeTrain())) == values(
        begin(Folder(Path("b")), wanted, FakeTrain())
    )


def test_a_run_that_was_complete_when_the_search_was_killed_is_only_read(make_search: Asked) -> None:
    folder, fake = Folder(Path("a")), FakeTrain()

    def killed_after_the_run(order: Order) -> int:
        fake(order)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(folder, make_search(trials=1), killed_after_the_run)
    rest = FakeTrain()
    assert states(go_on(folder, folder.read_search(), rest)) == ["complete"]
    assert rest.rates == []


def test_a_damaged_journal_is_told_with_what_to_do(make_search: Asked) -> None:
    folder = Folder(Path("a"))
    begin(folder, make_search(trials=2), FakeTrain())
    journal = Path("a/study.journal")
    journal.write_bytes(b"nonsense\n" + journal.read_bytes())
    with pytest.raises(MtError, match=r"study\.journal is damaged"):
        go_on(folder, folder.read_search().with_trials(4), FakeTrain())


def test_more_trials_go_on_where_it_ended(make_search: Asked) -> None:
    folder = Folder(Path("a"))
    first = begin(folder, make_search(trials=3), FakeTrain())
    rest = FakeTrain()
    more = go_on(folder, with_options(folder.read_search(), {"trials": 5}), rest)
    assert values(more)[:3] == values(first)
    assert (len(more.trials), len(rest.rates)) == (5, 2)


def test_a_search_that_goes_on_keeps_what_it_was_begun_with(make_search: Asked) -> None:
    folder = Folder(Path("a"))
    begin(folder, make_search(trials=1), FakeTrain())
    with pytest.raises(ConfigError) as caught:
        go_on(folder, make_search({"optimizer.lr": "log:1e-5..1e-2", "train.seed": "1..2"}, seed=2), FakeTrain())
    assert [fault.key for fault in caught.value.faults] == [
        "search.optimizer.lr",
        "search.train.micro-batch-size",
        "search.train.seed",
        "seed",
    ]
    with pytest.raises(UsageError, match="already holds a search; go on with --resume a"):
        begin(folder, make_search(trials=1), FakeTrain())


def test_a_folder_with_other_things_is_left_alone(make_search: Asked) -> None:
    Path("a").mkdir()
    Path("a/thesis.tex").touch()
    with pytest.raises(UsageError, match="is no search and not empty"):
        begin(Folder(Path("a")), make_search(trials=1), FakeTrain())
    with pytest.raises(UsageError, match=r"holds no search that could go on"):
        Folder(Path("a")).read_search()
    assert [each.name for each in Path("a").iterdir()] == ["thesis.tex"]


def test_a_bad_trial_ends_early_and_is_never_the_best(make_search: Asked) -> None:
    fake = FakeTrain()
    found = begin(
        Folder(Path("a")), make_search({"optimizer.lr": [1e-3, 2e-3, 1e-7]}, sampler="grid", prune_after=2), fake
    )
    assert states(found) == ["complete", "complete", "pruned"]
    assert [trial.steps for trial in found.trials] == [STEPS, STEPS, 1]
    assert found.best is found.trials[0] or found.best == found.trials[0]
    assert found.trials[2].value is None


def test_nothing_ends_early_where_that_is_not_wanted(make_search: Asked) -> None:
    space = {"optimizer.lr": [1e-3, 2e-3, 1e-7]}
    for name, options in {
        "none": {"prune": "none"},
        "after": {"prune_after": 3},
        "from": {"prune_after": 1, "prune_from": 9},
    }.items():
        found = begin(Folder(Path(name)), make_search(space, sampler="grid", **options), FakeTrain())
        assert states(found) == ["complete"] * 3, name


def test_a_trial_that_fails_counts_and_the_search_goes_on(
    make_search: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {"optimizer.lr": [1e-1, 1e-3, 1e-2]}
    found = begin(Folder(Path("a")), make_search(space, sampler="grid"), FakeTrain(fails=lambda lr: lr > 0.05))
    assert states(found) == ["failed", "complete", "complete"]
    assert found.trials[0].error == "step 1: loss nan is not finite"
    assert "failed: step 1: loss nan" in capsys.readouterr().err


def test_a_trial_that_says_no_error_is_told_by_what_ended_it(make_search: Asked) -> None:
    def ended(order: Order, code: int, said: str) -> int:
        order.log.write_text(said)
        return code

    for code, said in {
        -9: "killed by SIGKILL; it last said: step 3",
        3: "ended with code 3; it last said: step 3",
    }.items():
        with pytest.raises(MtError, match=said):
            begin(
                Folder(Path(f"a{code}")),
                make_search(trials=1),
                lambda order, code=code: ended(order, code, "step 2\nstep 3\n"),
            )


def test_a_run_that_is_complete_counts_however_its_process_ended(make_search: Asked) -> None:
    fake = FakeTrain()
    found = begin(Folder(Path("a")), make_search(trials=1), lambda order: fake(order) or -15)
    assert states(found) == ["complete"]


def test_where_every_trial_fails_the_search_ends_after_three_and_says_why(make_search: Asked) -> None:
    fake = FakeTrain(fails=lambda lr: True)
    with pytest.raises(MtError, match=r"the first 3 trials failed.*loss nan is not finite.*logs/trial-003\.log"):
        begin(Folder(Path("a")), make_search(trials=20), fake)
    assert len(fake.rates) == 3
    folder = Folder(Path("a"))
    found = go_on(folder, folder.read_search().with_trials(5), FakeTrain())  # once what was wrong is mended
    assert states(found) == ["failed"] * 3 + ["complete"] * 2


def test_a_figure_that_never_comes_ends_the_search_after_one_trial_with_those_that_do(make_search: Asked) -> None:
    fake = FakeTrain()
    with pytest.raises(
        MtError, match=r"waits for eval_los, which never comes. Did you mean 'eval_loss'\? There are: eval_loss, loss"
    ):
        begin(Folder(Path("a")), make_search(trials=9, metric="eval_los:min", prune="none"), fake)
    assert len(fake.rates) == 1


def test_a_figure_that_is_no_number_is_a_failed_trial(make_search: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fake_train.loss
    monkeypatch.setattr(fake_train, "loss", lambda lr, rows: float("nan") if lr > 0.05 else plain(lr, rows))
    found = begin(
        Folder(Path("a")), make_search({"optimizer.lr": [1e-3, 1e-1, 2e-3]}, sampler="grid", prune_after=1), FakeTrain()
    )
    assert (states(found)[1], found.trials[1].error) == ("failed", "eval_loss is not a number")
    assert found.best is not None
    assert found.best.number == 1


def test_json_has_null_for_a_figure_that_is_no_number(make_search: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fake_train.loss
    monkeypatch.setattr(fake_train, "loss", lambda lr, rows: float("nan") if lr > 0.05 else plain(lr, rows))
    found = begin(Folder(Path("a")), make_search({"optimizer.lr": [1e-3, 1e-1]}, sampler="grid"), FakeTrain())
    words: list[str] = []
    trials = json.loads(as_json(found), parse_constant=words.append)["trials"]
    assert not words, "NaN is no word of JSON"
    assert trials[1]["evaluations"] == {"1": None}


def test_a_grid_goes_through_every_combination_in_order(make_search: Asked) -> None:
    space = {"optimizer.lr": [1e-3, 1e-2], "train.micro_batch_size": "2..4/2", "optimizer.fused": "true,false"}
    found = begin(Folder(Path("a")), make_search(space, sampler="grid", prune="none"), FakeTrain())
    assert [tuple(each.values()) for each in values(found)] == [
        (lr, rows, fused) for lr in (1e-3, 1e-2) for rows in (2, 4) for fused in (True, False)
    ]


def test_the_same_values_are_not_trained_twice_and_no_more_trials_come_than_combinations(
    make_search: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeTrain()
    found = begin(Folder(Path("a")), make_search({"optimizer.lr": [1e-3, 1e-2, 1e-4]}, trials=200, prune="none"), fake)
    assert sorted(fake.rates) == [1e-4, 1e-3, 1e-2]
    assert len(found.trials) < 200
    assert len({(trial.values["optimizer.lr"], trial.value) for trial in found.trials}) == 3
    assert "all 3 combinations were tried" in capsys.readouterr().err


def test_choices_that_python_takes_for_equal_are_told_apart(make_search: Asked) -> None:
    found = begin(
        Folder(Path("a")),
        make_search({"optimizer.lr": [0.1, 1], "optimizer.fused": [True, False]}, sampler="grid"),
        FakeTrain(),
    )
    assert {repr(trial.values["optimizer.fused"]) for trial in found.trials} == {"True", "False"}
    assert {repr(trial.values["optimizer.lr"]) for trial in found.trials} == {"0.1", "1"}


def test_trials_whose_values_python_takes_for_equal_are_no_twins(make_search: Asked) -> None:
    fake, space = FakeTrain(), {"data.eval": [1, 1.0], "optimizer.lr": [1e-3, 1e-2]}
    found = begin(Folder(Path("a")), make_search(space, sampler="grid", trials=10, prune="none"), fake)
    assert fake.rates == [1e-3, 1e-2, 1e-3, 1e-2], "each is trained"
    assert len(found.trials) == 4, "the search ends where the grid does"


def test_the_table_is_there_after_every_trial(make_search: Asked) -> None:
    begin(Folder(Path("a")), make_search(trials=5, prune="none"), FakeTrain(stop_after=4))
    lines = Path("a/trials.csv").read_text().splitlines()
    assert lines[0] == "trial,state,eval_loss,optimizer.lr,train.micro_batch_size,steps,seconds,run,error"
    assert [line.split(",")[1] for line in lines[1:]] == ["complete"] * 3 + ["running"]
    assert Path("a/best.yaml").is_file()


def test_what_is_stored_is_plain_text_and_nothing_is_pickled(make_search: Asked) -> None:
    begin(Folder(Path("a")), make_search(trials=2), FakeTrain())
    for line in Path("a/study.journal").read_text().splitlines():
        json.loads(line)
    assert json.loads(Path("a/history.json").read_text())


def test_seeds_differ_between_trials_so_that_a_resumed_search_repeats_none(make_search: Asked) -> None:
    folder = Folder(Path("a"))
    begin(folder, make_search(trials=1, sampler="random"), FakeTrain())
    for trials in (2, 3):
        found = go_on(folder, folder.read_search().with_trials(trials), FakeTrain())
    assert len({trial.values["optimizer.lr"] for trial in found.trials}) == 3


def test_one_search_at_a_time_uses_a_folder(make_search: Asked) -> None:
    folder, wanted = Folder(Path("a")), make_search(trials=1)
    begin(folder, wanted, FakeTrain())
    with folder.hold(), pytest.raises(MtError, match="is in use by process"):
        go_on(folder, wanted, FakeTrain())
