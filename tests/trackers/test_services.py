"""Services: what is sent to them (to a stand-in that writes down each call, and to the real package where it is installed), and that
none of them can stop a run or give away a secret."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mt_core import MtError
from mt_train import train

SECRET = "a-key-that-nobody-should-see"

pytestmark = pytest.mark.usefixtures("kit_model")


class CallRecorder:
    """Answers every call, and writes down its name and arguments; ``broken`` raises in the calls of that name."""

    def __init__(self, answers: dict[str, Any] | None = None, broken: str = "") -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers, self.broken = answers or {}, broken

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append((name, arguments, keywords))
            if name == self.broken:
                raise ConnectionError(f"no network ({SECRET})")
            return self.answers.get(name)

        return called

    def calls_of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(arguments, keywords) for called, arguments, keywords in self.calls if called == name]


@pytest.fixture(autouse=True)
def secret_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)


def wandb(monkeypatch: pytest.MonkeyPatch, broken: str = "") -> tuple[CallRecorder, CallRecorder]:
    """(package, its run)."""
    run = CallRecorder(broken=broken)
    run.id = "abc123"  # type: ignore[attr-defined]
    package = CallRecorder({"init": run}, broken=broken)
    module = ModuleType("wandb")
    module.init, module.Settings = package.init, lambda **keywords: keywords  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return package, run


def mlflow(monkeypatch: pytest.MonkeyPatch) -> CallRecorder:
    created = SimpleNamespace(info=SimpleNamespace(run_id="run-7"))
    client = CallRecorder({"create_experiment": "4", "create_run": created, "get_metric_history": []})
    modules = {name: ModuleType(name) for name in ("mlflow", "mlflow.entities", "mlflow.tracking")}
    modules["mlflow.entities"].Metric = lambda key, value, timestamp, step: (key, value, step)  # type: ignore[attr-defined]
    modules["mlflow.entities"].Param = lambda key, value: (key, value)  # type: ignore[attr-defined]
    modules["mlflow.tracking"].MlflowClient = lambda tracking_uri: client  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return client


def raw_config(*trackers: Any, steps: int = 3) -> dict[str, Any]:
    return {
        "model": {"name": "kit-tiny", "n_layers": 1},
        "train": {"steps": steps, "micro_batch_size": 2, "sequence_len": 64},
        "data": {"eval": 4, "read_rows": 12},
        "eval": {"every_steps": 2, "samples": 0},
        "checkpoint": {"every_steps": 2},
        "log": {"every_steps": 1},
        "trackers": list(trackers),
    }


def test_wandb_gets_every_step_the_config_and_the_same_run_again_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, run = wandb(monkeypatch)
    init, link = package.init, tmp_path / "run/wandb/offline-run-1/logs/debug-core.log"
    (tmp_path / "service.log").write_text("the log of wandb's service, in the user's cache")

    def linking_init(**keywords: Any) -> Any:
        """As the package does, whatever its settings are."""
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tmp_path / "service.log")
        return init(**keywords)

    monkeypatch.setattr(sys.modules["wandb"], "init", linking_init)
    train(raw_config({"name": "wandb", "project": "p", "tags": ["a"]}), output=tmp_path / "run")
    assert not link.is_symlink(), "a folder that leads out of itself is not resumed"
    assert (tmp_path / "service.log").exists()
    [(_, keywords)] = package.calls_of("init")
    assert (keywords["project"], keywords["name"], keywords["id"], keywords["tags"]) == ("p", "run", None, ["a"])
    assert keywords["config"]["train"]["steps"] == 3
    logged = [arguments[0] for arguments, _ in run.calls_of("log")]
    assert [each["step"] for each in logged] == [1, 2, 3]
    assert ["eval_loss" in each for each in logged] == [False, True, True]
    assert run.calls_of("finish") == [((), {"exit_code": 0})]
    train({"train": {"steps": 4}}, resume=tmp_path / "run")
    assert package.calls_of("init")[1][1]["id"] == "abc123"


@pytest.mark.needs("mt-plugin-callbacks")
def test_a_run_that_fails_is_marked_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = wandb(monkeypatch)
    config = {**raw_config("wandb"), "callbacks": [{"name": "early-stopping", "metric": "lossy"}]}
    with pytest.raises(MtError, match="lossy, which never comes"):
        train(config, output=tmp_path / "run")
    assert run.calls_of("finish") == [((), {"exit_code": 1})]


def test_mlflow_gets_the_figures_with_their_steps_and_the_config_flat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = mlflow(monkeypatch)
    rates = {"*embed*": {"scale": 0.1}}
    train({**raw_config({"name": "mlflow", "experiment": "e"}), "optimizer": {"rates": rates}}, output=tmp_path / "run")
    assert client.calls_of("create_run") == [(("4",), {"run_name": "run"})]
    sent = [keywords for _, keywords in client.calls_of("log_batch")]
    params = dict(param for keywords in sent for param in keywords.get("params", []))
    assert params["train.steps"] == "3"
    assert params["optimizer.rates"].startswith("{'*embed*': ")
    assert all(re.fullmatch(r"[/\w. -]+", name) for name in params), "MLflow refuses any other name"
    assert all(len(keywords.get("params", [])) <= 100 for keywords in sent)
    steps = [{step for _, _, step in keywords["metrics"]} for keywords in sent if "metrics" in keywords]
    assert steps == [{1}, {2}, {3}]
    assert client.calls_of("set_terminated") == [(("run-7", "FINISHED"), {})]
    train({"train": {"steps": 4}}, resume=tmp_path / "run")
    assert len(client.calls_of("create_run")) == 1
    assert client.calls_of("update_run") == [(("run-7",), {"status": "RUNNING"})]


def test_mlflow_keeps_one_point_of_a_figure_that_a_resumed_run_makes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no way to remove one, and shows both; what it has not of a step is sent, as of an evaluation that is asked for now."""
    history: list[SimpleNamespace] = []
    client = mlflow(monkeypatch)
    client.get_metric_history = lambda run_id, name: [each for each in history if each.key == name]

    def sent() -> list[tuple[str, int]]:
        points = [each for _, keywords in client.calls_of("log_batch") for each in keywords.get("metrics", ())]
        client.calls.clear()
        history.extend(SimpleNamespace(key=name, value=value, step=step) for name, value, step in points)
        return [(name, step) for name, _, step in points if name in ("loss", "lr", "eval_loss")]

    train(raw_config("mlflow", steps=4), output=tmp_path / "run")
    assert [step for name, step in sent() if name == "loss"] == [1, 2, 3, 4]
    train({}, resume=tmp_path / "run/checkpoints/step-00000002")
    assert sent() == []
    train({"eval": {"every_steps": 1}}, resume=tmp_path / "run/checkpoints/step-00000002")
    assert sent() == [("eval_loss", 3)]
    for each in history:
        each.value += 0.5 * (each.step == 4)  # as of a step that was made otherwise
    train(
        {"train": {"steps": 5}, "eval": {"every_steps": 2}},
        resume=tmp_path / "run/checkpoints/step-00000002",
    )
    assert [step for name, step in sent() if name == "loss"] == [4, 5]


@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_a_tracker_that_fails_warns_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    wandb(monkeypatch, broken)
    train(raw_config("wandb", "csv"), output=tmp_path / "run")
    said = capsys.readouterr().err
    assert said.count("warning: tracker wandb failed") == 1
    assert "ConnectionError: no network (•••); the run goes on without it" in said
    assert (tmp_path / "run/completed").exists()
    assert len((tmp_path / "run/metrics.csv").read_text().splitlines()) == 4, "others are not touched"
    for path in (path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


def test_a_package_that_is_missing_is_said_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MtError, match=rf"needs the package {name}.*pip install 'mt-plugin-trackers\[{name}\]'"):
            train(raw_config(name), output=tmp_path / name)


def test_a_key_in_the_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MtError, match=r"trackers.*looks like a secret"):
        train(raw_config({"name": "wandb", "entity": SECRET}), output=tmp_path / "run")


def test_wandb_itself_takes_a_run_and_the_rest_of_it_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="mt-plugin-trackers[wandb] is not installed")
    train(raw_config({"name": "wandb", "mode": "offline"}), output=tmp_path / "run")
    train({"train": {"steps": 4}}, resume=tmp_path / "run")
    first, second = sorted((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"))
    assert first.name == second.name, "`wandb sync` sends both as one run"
    for content in (first.read_bytes(), second.read_bytes()):
        assert b"eval_loss" in content
        assert SECRET.encode() not in content


def test_mlflow_itself_takes_it_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mt-plugin-trackers[mlflow] is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    train(raw_config({"name": "mlflow", "tracking_uri": (tmp_path / "store").as_uri()}), output=tmp_path / "run")
    [file] = (tmp_path / "store").glob("*/*/metrics/eval_loss")
    assert [line.split()[2] for line in file.read_text().splitlines()] == ["2", "3"]
    recorded = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert float(file.read_text().split()[1]) == recorded[1]["eval_loss"]
