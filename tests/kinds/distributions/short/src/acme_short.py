"""Offers a component of a kind that another distribution brings, and one of the core's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from mt_core import Component, MtConfig, Row, hookimpl


class ShortConfig(MtConfig):
    """Options of the filter."""

    most: int = Field(20, gt=0, description="longest text that is kept (characters)")


@dataclass(frozen=True)
class Short:
    """Keeps rows with a short text."""

    most: int

    def keeps(self, row: Row) -> bool:
        """Return whether the row is kept."""
        return len(str(row["text"])) <= self.most


def _build_filter(config: ShortConfig) -> Short:
    return Short(config.most)


def _build_schedule(config: MtConfig, *, total_steps: int) -> Callable[[int], float]:
    return lambda update: 1.0


@hookimpl
def mt_row_filters() -> list[Component]:
    return [Component(name="short", config=ShortConfig, build=_build_filter, summary="keeps rows with a short text")]


@hookimpl
def mt_schedules() -> list[Component]:
    return [Component(name="steady", build=_build_schedule, summary="the base rate, always")]
