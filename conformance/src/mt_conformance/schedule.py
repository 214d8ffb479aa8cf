"""Conformance of a schedule: a pure function of the update's number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mt_conformance.base import BasePluginConformance
from mt_core.errors import MtError
from mt_core.plugins.host import PluginHost
from mt_core.protocols import Schedule


class BaseScheduleConformance(BasePluginConformance):
    """Checks of a schedule.

    Opt-in: ``reference``, the factors of a run of ``total_steps`` by other code.
    """

    kind = "schedule"
    total_steps: int = 40
    """Updates of the run that is looked at; ``options`` have to fit into it."""
    peak: float = 1.0
    """Highest factor; a schedule that stays below the base rate, or rises above it, says how far."""

    def reference(self, total_steps: int) -> Sequence[float] | None:
        """The factors of all updates by code that you did not write; ``None`` leaves the check out."""
        return None

    def schedule(self, host: PluginHost, folder: Path) -> Schedule:
        """Build the schedule as a run does."""
        built: Schedule = self.part(host, folder).build(total_steps=self.total_steps)
        return built

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """The factors."""
        schedule = self.schedule(host, folder)
        return [schedule(k) for k in range(self.total_steps)]

    def test_it_is_a_pure_function(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Factors do not depend on the order of calls: a resumed run may begin with update 500."""
        schedule, other = self.schedule(mt_host, tmp_path), self.schedule(mt_host, tmp_path)
        first = [schedule(k) for k in range(self.total_steps)]
        backwards = [schedule(k) for k in reversed(range(self.total_steps))][::-1]
        fresh = [other(k) for k in reversed(range(self.total_steps))][::-1]
        wrong = [k for k in range(self.total_steps) if not first[k] == backwards[k] == fresh[k]]
        assert not wrong, (
            f"update {wrong[0]} had the factor {first[wrong[0]]!r} at first, {backwards[wrong[0]]!r} when the updates were"
            f" asked for backwards, and {fresh[wrong[0]]!r} from a schedule built anew. It has to follow from k and the"
            " config alone: keep no counter and no random state"
        )

    def test_every_factor_is_a_finite_number_and_none_is_negative(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """From the first update to beyond the last one, since a run may get more steps."""
        schedule = self.schedule(mt_host, tmp_path)
        for k in (*range(self.total_steps), self.total_steps, 10 * self.total_steps):
            factor = schedule(k)
            fits = isinstance(factor, int | float) and math.isfinite(factor) and factor >= 0
            assert fits, (
                f"update {k} of {self.total_steps} has the factor {factor!r}; it must be a finite number, 0 or more"
                + (" (k beyond the run keeps the last factor)" if k >= self.total_steps else "")
            )

    def test_a_run_of_few_updates_has_factors(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Runs of one, two and three updates have factors, or options that do not fit into them are refused with an ``MtError``."""
        part = self.part(mt_host, tmp_path)
        for total in (1, 2, 3):
            try:
                schedule = part.build(total_steps=total)
                factors = [schedule(k) for k in range(total + 1)]
            except MtError:  # options such as a warm-up of 5 updates
                continue
            except Exception as error:
                raise AssertionError(
                    f"in a run of {total} update(s) it raised {type(error).__name__}: {error}. Runs are tried out with few updates:"
                    " a decay may have a length of 0; raise UsageError for options that do not fit"
                ) from error
            wrong = [each for each in factors if not (math.isfinite(each) and each >= 0)]
            assert not wrong, (
                f"in a run of {total} update(s) it has the factor {wrong[0]!r}; it must be a finite number, 0 or more"
            )

    def test_some_update_trains(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Some factor is above 0, and the highest is 1 (within a tenth, where the peak lies between two updates), or ``peak``."""
        schedule = self.schedule(mt_host, tmp_path)
        highest = max(schedule(k) for k in range(self.total_steps))
        assert highest > 0, f"all {self.total_steps} updates have the factor 0: nothing would be trained"
        assert abs(highest - self.peak) <= 0.1 * self.peak, (
            f"the highest factor is {highest:g}, and {self.peak:g} is the base rate of each group, which the optimizer has: give"
            " factors, not rates. A schedule that stays below on purpose sets `peak` in its test"
        )

    def test_it_equals_its_reference(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Optional: the factors equal the reference's."""
        wanted = self.reference(self.total_steps)
        if wanted is None:
            pytest.skip("opt-in: override reference(total_steps) with the factors by other code")
        schedule = self.schedule(mt_host, tmp_path)
        found = [schedule(k) for k in range(self.total_steps)]
        apart = [
            k for k in range(self.total_steps) if not math.isclose(found[k], wanted[k], rel_tol=1e-9, abs_tol=1e-12)
        ]
        assert not apart, (
            f"update {apart[0]} has the factor {found[apart[0]]!r}, and the reference {wanted[apart[0]]!r} (allowed: 1e-9"
            f" of it); {len(apart)} of {self.total_steps} updates differ"
        )
