"""Entry point of the search plugin: says what it offers, holds no logic, imports neither torch nor Optuna."""

from __future__ import annotations

from mt_core import ANY, Component, hookimpl

from .pruning import MedianPruning, MedianPruningConfig


@hookimpl
def mt_callbacks() -> list[Component]:
    return [
        Component(
            name="median-pruning",
            config=MedianPruningConfig,
            build=MedianPruning,
            summary="ends a trial of mt-search that is worse than half of those before it",
            source="https://dl.acm.org/doi/10.1145/3097983.3098043",
            layouts=ANY,
        )
    ]
