"""Every check of the kit catches the plugin that was made for it, and says so."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the spoiled plugin, which also runs in processes of its own

from catch_list import ALONE, CAUGHT, EQUAL, LAUNCHED, TRAINED, FaultyCase, checks
from faulty_plugins import plugin as spoiled

from mt_conformance import BaseScheduleConformance, hermetic_host
from mt_conformance.launch import Case, Result, launch_cases


def run(suite: Any, check: str, folder: Path, results: Mapping[str, Result] | None = None) -> None:
    """Call a check as pytest would."""
    given = {"mt_host": hermetic_host(suite.plugin), "tmp_path": folder, "mt_launched": results}
    method = getattr(suite, check)
    method(**{name: given[name] for name in inspect.signature(method).parameters})


@pytest.mark.parametrize("bad", CAUGHT, ids=lambda each: each.title)
def test_a_spoiled_plugin_is_caught_with_a_message(bad: FaultyCase, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        run(bad.suite(), bad.check, tmp_path)
    assert re.search(bad.says, " ".join(str(caught.value).split())), str(caught.value)


@pytest.mark.parametrize("good", EQUAL, ids=lambda each: each.title)
def test_what_has_no_fault_passes(good: FaultyCase, tmp_path: Path) -> None:
    run(good.suite(), good.check, tmp_path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Result]]:
    """What came of all spoiled runs, in one launch."""
    folder, cases = tmp_path_factory.mktemp("launch"), {}
    for bad in [*LAUNCHED, *TRAINED]:
        own: Mapping[str, Case] = bad.suite().launch_cases(hermetic_host(spoiled), folder)
        cases |= {f"{bad.base.kind}-{bad.name}-{name}": case for name, case in own.items()}
    found = launch_cases(cases, folder, plugin=spoiled)
    return {
        bad.title: {name.removeprefix(start): result for name, result in found.items() if name.startswith(start)}
        for bad in [*LAUNCHED, *TRAINED]
        for start in [f"{bad.base.kind}-{bad.name}-"]
    }


@pytest.mark.parametrize("bad", LAUNCHED, ids=lambda each: each.title)
def test_a_spoiled_run_is_caught_with_a_message(bad: FaultyCase, results: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        run(bad.suite(), bad.check, tmp_path, results[bad.title])
    assert re.search(bad.says, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("good", TRAINED, ids=lambda each: each.title)
def test_a_run_without_a_fault_passes(good: FaultyCase, results: Any, tmp_path: Path) -> None:
    run(good.suite(), good.check, tmp_path, results[good.title])


def test_no_check_of_the_kit_is_without_a_plugin_that_it_catches() -> None:
    caught = {(kind.__name__, bad.check) for bad in [*CAUGHT, *LAUNCHED] for kind in bad.base.__mro__}
    missing = sorted(name for kind, name in checks() if (kind, name) not in caught and name not in ALONE)
    assert missing == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import torch\n", r"imports torch by .*heavy\.py:1: import torch\. Import it inside `build`"),
        (
            "import time\nend = time.process_time() + 1.1\nwhile time.process_time() < end: pass\n",
            r"takes \d,\d\d\d ms of processor time.*at most 1,000 ms",
        ),
        ("1 / 0\n", "does not load in a process of its own: ZeroDivisionError"),
    ],
)
def test_a_plugin_that_is_slow_or_heavy_to_import_is_caught(
    source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import ModuleType

    name = f"heavy_{len(source)}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    suite = type("TestHeavy", (BaseScheduleConformance,), {"plugin": ModuleType(name), "name": "x"})()
    with pytest.raises(AssertionError, match=says.replace("heavy", name)):
        run(suite, "test_importing_it_takes_milliseconds_and_loads_nothing_heavy", tmp_path)
