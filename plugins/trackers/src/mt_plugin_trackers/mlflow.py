"""MLflow. Credentials come from its own environment variables, never from a config."""

from __future__ import annotations

import time
from typing import Any

from pydantic import Field

from mt_core import MtConfig, StepRecord, TrackedRun

from .service import figures, flatten, id_file, keep_id, kept_id, package

MOST_PARAMS = 100
"""Params that one request of MLflow may hold."""
KEY = "loss"
"""Figure by which a step is known that was sent before."""
LONGEST = 500
"""Characters of a param that every version of MLflow takes."""


class MlflowConfig(MtConfig):
    """Place of the run at the service."""

    experiment: str = Field("mt", min_length=1, description="experiment of the run, made where there is none")
    tracking_uri: str | None = Field(
        None, min_length=1, description="server, or sqlite:///FILE; default is MLFLOW_TRACKING_URI, else MLflow's own"
    )


class MlflowTracker:
    """Sends figures and the config, by a client of its own: nothing global of MLflow is touched."""

    def __init__(self, config: MlflowConfig, run: TrackedRun) -> None:
        package("mlflow", "mlflow")
        self._entities = package("mlflow.entities", "mlflow")
        self._client = package("mlflow.tracking", "mlflow").MlflowClient(tracking_uri=config.tracking_uri)
        self._sent: dict[int, float] = {}
        self._steps: dict[str, set[int]] = {}
        known = kept_id(run.output, "mlflow")
        if known is not None:
            self._id = known
            history = self._client.get_metric_history(known, KEY)
            self._sent = {each.step: each.value for each in history if each.step > run.first_step}
            self._client.update_run(known, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(config.experiment)
        place = experiment.experiment_id if experiment else self._client.create_experiment(config.experiment)
        self._id = str(self._client.create_run(place, run_name=run.name).info.run_id)
        keep_id(run.output, "mlflow", self._id)
        self._send_config(run)

    def log(self, record: StepRecord) -> None:
        """Send one step; not what a resumed run has made again with the same loss, since MLflow would keep both."""
        sent, found = self._sent.pop(record.step, None), figures(record)
        if sent is not None and sent == found.get(KEY):
            found = {name: value for name, value in found.items() if record.step not in self._steps_with(name)}
        if not found:
            return
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, record.step) for name, value in found.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def _steps_with(self, name: str) -> set[int]:
        """Return the steps of which MLflow has this figure: a resumed run may have some that it had not, as of an evaluation."""
        if name not in self._steps:
            self._steps[name] = {each.step for each in self._client.get_metric_history(self._id, name)}
        return self._steps[name]

    def close(self, *, failed: bool) -> None:
        """Say how it ended."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def _send_config(self, run: TrackedRun) -> None:
        params = [self._entities.Param(key, str(value)[:LONGEST]) for key, value in flatten(run.config)]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._id, params=params[start : start + MOST_PARAMS])


def build_mlflow(config: MlflowConfig, *, run: TrackedRun) -> Any:
    """The tracker. Raises ``MtError`` where MLflow is not installed."""
    return MlflowTracker(config, run)


def mlflow_files(config: MlflowConfig) -> tuple[str, ...]:
    """The id of the run: names within a run's folder."""
    return (id_file("mlflow"),)
