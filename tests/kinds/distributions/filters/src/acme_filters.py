"""Brings a kind of component: filters of rows, of which a run names as many as it likes."""

from __future__ import annotations

from typing import Protocol

from mt_core import Kind, Row, hookimpl


class RowFilter(Protocol):
    """Decides which rows are kept."""

    def keeps(self, row: Row) -> bool:
        """Return whether the row is kept."""


@hookimpl
def mt_kinds() -> list[Kind]:
    return [
        Kind(
            name="row_filter",
            hook="mt_row_filters",
            slot="many",
            key="row_filters",
            returns="acme_filters:RowFilter",
            summary="decides which rows are kept",
        )
    ]
