"""Entry point of the trackers plugin: says what it offers, holds no logic; wandb and mlflow are imported when one is built."""

from __future__ import annotations

from mt_core import ANY, Component, hookimpl

from .mlflow import MlflowConfig, build_mlflow, mlflow_files
from .table import CsvConfig, build_csv, csv_files
from .wandb import WandbConfig, build_wandb, wandb_files


@hookimpl
def mt_trackers() -> list[Component]:
    return [
        Component(
            name="csv",
            config=CsvConfig,
            build=build_csv,
            writes=csv_files,
            summary="figures as CSV: one line a step, one column a figure",
            source="https://www.rfc-editor.org/rfc/rfc4180",
            layouts=ANY,
        ),
        Component(
            name="wandb",
            config=WandbConfig,
            build=build_wandb,
            writes=wandb_files,
            summary="Weights & Biases, online or offline (needs mt-plugin-trackers[wandb])",
            source="https://docs.wandb.ai",
            layouts=ANY,
        ),
        Component(
            name="mlflow",
            config=MlflowConfig,
            build=build_mlflow,
            writes=mlflow_files,
            summary="MLflow, on a server or in a file (needs mt-plugin-trackers[mlflow])",
            source="https://mlflow.org/docs/latest/ml/tracking",
            layouts=ANY,
        ),
    ]
