"""Entry point of the trackers plugin: says what it offers, holds no logic; wandb and mlflow are imported when one is built."""

from __future__ import annotations

from mt_core import ANY, Component, hookimpl

from .table import CsvConfig, build_csv


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
    ]
