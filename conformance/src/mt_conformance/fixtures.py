"""The kit's pytest plugin: ``pytest_plugins = ["mt_conformance.fixtures"]`` in the ``conftest.py`` beside the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mt_conformance import trainer
from mt_conformance.host import hermetic_host
from mt_conformance.launch import Case, Result, launch_cases

if TYPE_CHECKING:
    from mt_core.plugins.host import PluginHost

MARKER = "mt_launch: starts processes, which takes some ten seconds a class (leave out with -m 'not mt_launch')"


def pytest_configure(config: pytest.Config) -> None:
    """Make the kit's marker known, also to ``--strict-markers``."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def mt_host(request: pytest.FixtureRequest) -> PluginHost:
    """The core's built-ins and ``plugin`` of the test's class or module; nothing else that is installed here."""
    owner = request.instance if request.instance is not None else request.module
    plugin = getattr(owner, "plugin", None)
    if plugin is None:
        pytest.fail(
            "mt_host needs to know the plugin: give the class (or the module) an attribute `plugin`, the module that the"
            " entry point names",
            pytrace=False,
        )
    return hermetic_host(plugin)


@pytest.fixture(scope="session")
def _mt_launches() -> dict[Any, dict[str, Result]]:
    return {}


@pytest.fixture
def mt_launched(
    request: pytest.FixtureRequest,
    mt_host: PluginHost,
    tmp_path_factory: pytest.TempPathFactory,
    _mt_launches: dict[Any, dict[str, Result]],
) -> dict[str, Result]:
    """Return what came of the runs that the class asks for (``launch_cases``): all in one launch, once for each component."""
    instance = request.instance
    key = (type(instance), instance.name)
    if key not in _mt_launches:
        folder = tmp_path_factory.mktemp("launch")
        trainer.require()
        cases: dict[str, Case] = instance.launch_cases(mt_host, folder)
        _mt_launches[key] = launch_cases(cases, folder, plugin=instance.plugin) if cases else {}
    return _mt_launches[key]
