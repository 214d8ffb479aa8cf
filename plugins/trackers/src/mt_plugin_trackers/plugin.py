"""Entry point of the trackers plugin: says what it offers, holds no logic; wandb and mlflow are imported when one is built."""

from __future__ import annotations

from mt_core import ANY, Component, hookimpl

from .mlflow import MlflowConfig, build_mlflow
from .table import CsvConfig, build_csv
from .wandb import WandbConfig, build_wandb


@hookimpl
def mt_trackers() -> list[Component]:
    return [
        Component(
            name="csv",
            config=CsvConfig,
            build=build_csv,
            summary="figures as CSV: one line a step, one column a figure",
            source="https://www.rfc-editor.org/rfc/rfc4180",
            layouts=ANY,
        ),
        Component(
            name="wandb",
            config=WandbConfig,
            build=build_wandb,
            summary="Weights & Biases, online or offline (needs mt-plugin-trackers[wandb])",
            source="https://docs.wandb.ai",
            layouts=ANY,
        ),
        Component(
            name="mlflow",
            config=MlflowConfig,
            build=build_mlflow,
            summary="MLflow, on a server or in a file (needs mt-plugin-trackers[mlflow])",
            source="https://mlflow.org/docs/latest/ml/tracking",
            layouts=ANY,
        ),
    ]
