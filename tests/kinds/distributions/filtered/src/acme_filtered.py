"""Offers a dataset that is made of another one and of filters, its own and those of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from mt_core import Component, Dataset, MtConfig, PartChoice, Row, hookimpl


class FilteredConfig(MtConfig):
    """Options of the dataset."""

    source: dict[str, Any] = Field(description="the dataset: its name and options")
    keep: dict[str, Any] | None = Field(None, description="a filter of this dataset alone: its name and options")


class Filtered:
    """The rows of a dataset that every filter keeps."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        """Return the row of this number."""
        return self._rows[index]


def _parts(config: FilteredConfig) -> dict[str, PartChoice]:
    own = {"keep": PartChoice.of(config.keep, kind="row_filter")} if config.keep is not None else {}
    return {"source": PartChoice.of(config.source), **own}


def _build(
    config: FilteredConfig, *, split: str, parts: Sequence[Any], row_filters: Mapping[str, Any]
) -> Dataset | None:
    source, *own = parts
    if source is None:
        return None
    rows = [source.row(index) for index in range(len(source))]
    return Filtered([row for row in rows if all(each.keeps(row) for each in (*own, *row_filters.values()))])


@hookimpl
def mt_datasets() -> list[Component]:
    return [
        Component(
            name="filtered",
            config=FilteredConfig,
            build=_build,
            parts=_parts,
            uses=("row_filter",),
            summary="the rows of a dataset that filters keep",
        )
    ]
