"""The kit as the author of a plugin meets it: two files of tests, and pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mt_conformance
from mt_conformance import BasePluginConformance, BaseTaskPrintConformance, hermetic_host, tiny

sys.path.insert(0, str(Path(__file__).parent))

from check_table import PAGE, page

CONFTEST = 'pytest_plugins = ["mt_conformance.fixtures"]\n'
PLUGIN = """
from mt_core import Component, hookimpl

@hookimpl
def mt_callbacks():
    return [Component(name="counts", summary="counts steps", build=lambda config: Counts())]

@hookimpl
def mt_task_prints():
    return [Component(name="short", summary="a short line", build=lambda config: lambda records: "a line" * len(records))]

class Counts:
    def on_step_end(self, context):
        self.steps = context.step
"""
TESTS = """
import {plugin} as plugin
from mt_conformance import BaseCallbackConformance, BaseTaskPrintConformance

class TestCounts(BaseCallbackConformance):
    plugin, name, launches = plugin, "counts", {launches}

class TestShort(BaseTaskPrintConformance):
    plugin, name = plugin, "short"

def test_the_host_finds_nothing_by_itself(mt_host):
    assert [each.info.distribution for each in mt_host.plugins] == ["mt-plugin-standard", "mt-train", "{distribution}"]
"""


@pytest.fixture
def author(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a plugin and its tests."""
    pytester.syspathinsert()
    pytester.makeconftest(CONFTEST)
    return pytester


def test_an_author_gets_every_check_and_a_mark_to_leave_out_processes(author: pytest.Pytester) -> None:
    author.makepyfile(mt_plugin_kept=PLUGIN)
    author.makepyfile(TESTS.format(plugin="mt_plugin_kept", distribution="mt-plugin-kept", launches=True))
    result = author.runpytest_inprocess("--strict-markers", "-m", "not mt_launch", "-p", "no:cacheprovider")
    outcomes = result.parseoutcomes()
    assert outcomes.keys() <= {"passed", "skipped", "deselected"}, "nothing fails, and nothing warns"
    assert outcomes["passed"] > 15
    assert outcomes["deselected"] == 3
    assert "mt_launch: starts processes" in author.runpytest_inprocess("--markers").stdout.str()


def test_launches_are_left_out_where_the_class_says_so(author: pytest.Pytester) -> None:
    author.makepyfile(mt_plugin_quiet=PLUGIN)
    author.makepyfile(TESTS.format(plugin="mt_plugin_quiet", distribution="mt-plugin-quiet", launches=False))
    result = author.runpytest_inprocess("-k", "TestCounts", "-m", "mt_launch", "-rs", "-p", "no:cacheprovider")
    assert result.parseoutcomes()["skipped"] == 3
    assert "passed" not in result.parseoutcomes()
    assert "launches = False" in result.stdout.str()


def test_a_host_without_a_plugin_says_what_is_missing(author: pytest.Pytester) -> None:
    author.makepyfile("def test_it(mt_host): pass")
    result = author.runpytest_inprocess("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(
        ["*mt_host needs to know the plugin: give the class (or the module) an attribute `plugin`*"]
    )


def test_a_component_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    from mt_plugin_standard import plugin

    suite = type("TestNothing", (BaseTaskPrintConformance,), {"plugin": plugin, "name": "los"})()
    with pytest.raises(
        AssertionError, match=r"offers no task_print named 'los'; mt_task_prints offers \['loss'\]\. Set"
    ):
        suite.test_no_records_give_a_line_or_nothing(hermetic_host(plugin), tmp_path)
    suite.name, suite.options = "loss", {"digts": 3}
    with pytest.raises(AssertionError, match=r"options of TestNothing are not valid: task-print\.digts: no such key"):
        suite.test_no_records_give_a_line_or_nothing(hermetic_host(plugin), tmp_path)


def test_a_hermetic_host_has_the_built_ins_and_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MT_PLUGINS", "nothing-else")
    host = hermetic_host(tiny)
    assert [(each.info.distribution, each.status) for each in host.plugins] == [
        ("mt-plugin-standard", "loaded"),
        ("mt-train", "loaded"),
        ("mt-conformance", "loaded"),
    ]
    assert {offer.component.name for offer in host.offers("model")} == {tiny.NAME}
    assert host.get("optimizer", "adamw").plugin.distribution == "mt-plugin-standard"


def test_what_the_distribution_of_a_plugin_requires_is_in_its_host() -> None:
    from mt_plugin_evals import plugin as evals
    from mt_plugin_llama import plugin as llama

    host = hermetic_host(evals)
    assert "mt-plugin-datasets" in [each.info.distribution for each in host.plugins], "its evaluations are made of rows"
    assert host.plugins[-1].module is evals
    assert [each.info.distribution for each in hermetic_host(llama).plugins][2:] == ["mt-plugin-llama"]


def test_without_pytest_the_kit_says_what_to_install() -> None:
    code = "import sys; sys.modules['pytest'] = None; from mt_conformance import BaseModelConformance"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert "needs pytest, which is not installed. Install it: pip install mt-conformance" in done.stderr


def test_every_public_class_is_a_conformance_class_and_the_page_lists_every_check() -> None:
    classes = [getattr(mt_conformance, name) for name in mt_conformance.__all__ if name.startswith("Base")]
    assert all(issubclass(each, BasePluginConformance) for each in classes)
    assert dir(mt_conformance) == sorted(mt_conformance.__all__)
    with pytest.raises(AttributeError, match="no public name 'BaseNothing'"):
        _ = mt_conformance.BaseNothing
    assert PAGE.read_text() == page(), "run python tests/conformance/check_table.py"
