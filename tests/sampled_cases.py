"""Results of cases that share a launch: those of each change in one, the rest in another, which only rarer tests ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Cases = dict[str, dict[str, Any]]


class SampledCases(dict[str, Any]):
    """Results by the name of the case; the rest is launched when one of them is asked for."""

    def __init__(self, run: Callable[[Cases], dict[str, Any]], sample: Cases, rest: Cases) -> None:
        super().__init__(run(sample))
        self._run, self._rest = run, rest

    def __missing__(self, name: str) -> Any:
        if name not in self._rest:
            raise KeyError(name)
        self.update(self._run(self._rest))
        return self[name]
