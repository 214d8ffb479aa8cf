"""Conformance of a callback: it hears what it asks for, goes on where it stopped, and fails under its own name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mt_conformance.base import BasePluginConformance
from mt_conformance.launch import Case, Result
from mt_conformance.layouts import WHOLE, no_error, on_two, parallel_section, same_after_resume, small_run
from mt_core.errors import did_you_mean
from mt_core.events import EVENTS
from mt_core.plugins.host import PluginHost

BROKEN = "broken"
"""The case in which it raises, on two processes."""
USUAL = ("on_step_end", "on_after_optimizer_step", "on_step_start", "on_log", "on_run_start", "on_model_built")
"""Events that come in every run, the most usual first."""


class BaseCallbackConformance(BasePluginConformance):
    """Checks of a callback. ``sections`` are sections of the run's config that it needs (``{"eval": {…}}``).

    ``launches = False`` leaves the launch out, where a suite of your own covers it.
    """

    kind = "callback"
    launches: bool = True
    sections: Mapping[str, Any] = {}

    def callback(self, host: PluginHost, folder: Path) -> Any:
        """Build the callback as a run does."""
        return self.part(host, folder).build()

    def events(self, host: PluginHost, folder: Path) -> list[str]:
        """The events of the contract that it has a method for."""
        callback = self.callback(host, folder)
        return [event for event in EVENTS if hasattr(callback, event)]

    def run(self, host: PluginHost, folder: Path) -> dict[str, Any]:
        """Four steps with it, evaluated and saved every two."""
        options = dict(self.values_in(host, folder))
        usual = {
            "data": {"eval": 2, "read_rows": 6},
            "eval": {"every_steps": 2, "samples": 0},
            "log": {"every_steps": 1},
        }
        return small_run(**usual, callbacks={self.name: options}) | dict(self.sections)

    def launch_cases(self, host: PluginHost, folder: Path) -> Mapping[str, Case]:
        if not self.launches:
            return {}
        raw, layouts = self.run(host, folder), self.component(host).layouts
        whole = {**raw, "parallel": parallel_section(layouts)}
        cases: dict[str, Case] = {WHOLE: Case(raw=whole, again_from=2), **on_two(raw, layouts)}
        events = [each for each in (*USUAL, *EVENTS) if each in self.events(host, folder)]
        if events:
            cases[BROKEN] = Case(raw=whole, processes=2, raises_in=events[0])
        return cases

    def test_it_has_methods_for_events_of_the_contract(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Every ``on_*`` method is an event of the contract: a misspelt one would never be called."""
        callback = self.callback(mt_host, tmp_path)
        own = [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name))]
        for name in own:
            assert name in EVENTS, (
                f"it has a method {name}, and there is no such event. {did_you_mean(name, list(EVENTS))}Events: {', '.join(EVENTS)};"
                " a helper of its own begins with another word"
            )
        assert own or hasattr(callback, "around_evaluation"), (
            f"build returned a {type(callback).__name__} without a method for any event; it would never be called. Events:"
            f" {', '.join(EVENTS)}, and around_evaluation"
        )

    def test_every_event_is_called_with_one_context(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Every event's method takes one argument, ``method(context)``."""
        callback = self.callback(mt_host, tmp_path)
        for event in self.events(mt_host, tmp_path):
            signature = inspect.signature(getattr(callback, event))
            try:
                signature.bind(object())
            except TypeError as error:
                given = ", ".join(signature.parameters)
                raise AssertionError(
                    f"{event}({given}) cannot be called with one CallbackContext ({error}); declare {event}(self, context)"
                ) from error

    def test_its_state_is_json_and_comes_back(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A state, if there is one, survives a round trip through JSON; tensors are saved by ``tensors``."""
        callback = self.callback(mt_host, tmp_path)
        pair = [hasattr(callback, name) for name in ("state_dict", "load_state_dict")]
        assert pair[0] == pair[1], (
            "it has one of state_dict and load_state_dict; a state that is saved must be loaded, too"
        )
        if not pair[0]:
            pytest.skip("it keeps no state")
        state = callback.state_dict()
        try:
            plain = json.loads(json.dumps(state, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AssertionError(
                f"state_dict() is not JSON: {error}. It holds dicts, lists, text, finite numbers, true, false and None; tensors"
                " go through tensors() and load_tensors()"
            ) from error
        fresh = self.callback(mt_host, tmp_path)
        fresh.load_state_dict(plain)
        again = json.loads(json.dumps(fresh.state_dict()))
        assert again == plain, f"state_dict() gave {plain}, and after load_state_dict() of it {again}"

    @pytest.mark.mt_launch
    def test_it_runs_on_every_declared_layout(self, mt_host: PluginHost, mt_launched: Mapping[str, Result]) -> None:
        """A run with the callback works in one process, and in two on the declared ``layouts``."""
        self.require_launch(mt_launched)
        for layout, result in mt_launched.items():
            if layout != BROKEN:
                no_error(result, "one process" if layout == WHOLE else f"two processes with {layout}")

    @pytest.mark.mt_launch
    def test_a_resumed_run_equals_one_that_was_not_stopped(self, mt_launched: Mapping[str, Result]) -> None:
        """A run with the callback, resumed in the middle, equals an uninterrupted one bit for bit."""
        self.require_launch(mt_launched)
        same_after_resume(no_error(mt_launched[WHOLE], "one process"), self.name)

    @pytest.mark.mt_launch
    def test_an_exception_inside_is_reported_with_its_name_on_all_ranks(
        self, mt_launched: Mapping[str, Result]
    ) -> None:
        """An exception in one of its events, raised on both of two processes, is reported with its name."""
        self.require_launch(mt_launched)
        if BROKEN not in mt_launched:
            pytest.skip("it has no method for an event")
        for rank, error in enumerate(mt_launched[BROKEN].errors):
            named = error.startswith(f"CallbackError: callback {self.name} (")
            assert named, (
                f"an exception inside {self.name!r} ended rank {rank} with {error[-500:] or 'no error at all'}; it must end with an"
                f" error that begins 'callback {self.name} (…) failed in …'. Let exceptions through: the core says whose they are"
            )

    def require_launch(self, results: Mapping[str, Result]) -> None:
        """Skip where there was none."""
        if not results:
            pytest.skip("no launch: launches = False")
