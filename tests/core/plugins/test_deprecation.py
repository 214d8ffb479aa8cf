"""How the contract changes: old plugins load, their warnings are seen, and what is gone says what to write instead."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

import mt_core
from mt_core import deprecation, hookspecs
from mt_core.cli.plugins import main
from mt_core.deprecation import MtDeprecationWarning, Replacement
from mt_core.kinds import CORE_KINDS
from mt_core.plugins.host import PluginHost
from mt_train.assemble.discovery import discover_plugins

Hosts = Callable[..., PluginHost]
ROOT = Path(__file__).parents[3]
API = ROOT / "tests/golden/api-1.json"
"""The public names with which API version 1 began."""

OLD = """
from mt_core import OldComponent, hookimpl

@hookimpl
def mt_schedules():
    return [OldComponent(name="steady", summary="a schedule")]
"""


@pytest.fixture
def deprecated_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ``Component`` had been called ``OldComponent`` before."""
    monkeypatch.setattr(deprecation, "DEPRECATED", {"OldComponent": Replacement("Component", "0.3")})


@pytest.mark.usefixtures("deprecated_name")
def test_an_old_plugin_loads_and_its_warning_has_its_name_the_end_and_the_remedy(hosts: Hosts) -> None:
    host = hosts(acme_old=OLD)
    assert host.get("schedule", "steady").component.summary == "a schedule"
    assert host.notices == [
        "plugin 'acme-old' (acme-old under test): mt_core.OldComponent goes in mt-core 0.3; write mt_core.Component"
    ]


@pytest.fixture
def install(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """``install(code, range)``: the distribution acme-old with this module, for mt-core of this range; no other is allowed."""

    def write(code: str, needed: str) -> None:
        info = tmp_path / "acme_old-1.0.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.1\nName: acme-old\nVersion: 1.0\nRequires-Dist: mt-core{needed}\n"
        (info / "METADATA").write_text(head)
        (info / "entry_points.txt").write_text("[mt_core.plugins]\nold = acme_old\n")
        (tmp_path / "acme_old.py").write_text(code)
        monkeypatch.setenv("MT_PLUGINS", "old")

    return write


@pytest.mark.usefixtures("deprecated_name")
def test_the_warning_is_seen_in_every_run_and_fails_a_strict_check(
    install: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(OLD, ">=0.1,<0.2")
    text = "mt_core.OldComponent goes in mt-core 0.3; write mt_core.Component"
    discover_plugins()
    assert f"warning: plugin 'old' (acme-old 1.0): {text}" in capsys.readouterr().err
    sys.modules.pop("acme_old")
    assert main(["check", "old"]) == 0
    assert f"problem: {text}" in " ".join(capsys.readouterr().out.split())
    sys.modules.pop("acme_old")
    assert main(["check", "old", "--strict"]) == 1


def test_a_hook_that_will_go_warns_of_its_end(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    options = vars(hookspecs.mt_schedules)["mt_spec"]
    warning = MtDeprecationWarning("the hook mt_schedules goes in mt-core 0.3; write mt_rates")
    monkeypatch.setitem(options, "warn_on_impl", warning)
    host = hosts(acme_new=OLD.replace("OldComponent", "Component"))
    assert host.plugins[-1].status == "loaded"
    assert host.plugins[-1].warnings == [str(warning)]


def test_a_name_that_is_gone_says_what_to_write(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecation, "REMOVED", {"OldComponent": Replacement("Component", "0.3")})
    host = hosts(acme_old=OLD)
    assert host.plugins[-1].error == ("ImportError: mt_core.OldComponent went in mt-core 0.3; write mt_core.Component")


def test_other_warnings_of_a_plugin_are_shown_as_ever(hosts: Hosts) -> None:
    code = "import warnings\nwarnings.warn('look here', UserWarning)\n"
    with pytest.warns(UserWarning, match="look here"):
        host = hosts(acme_loud=code)
    assert host.plugins[-1].warnings == []


def test_a_plugin_for_another_release_says_so_where_it_fails_and_in_a_check_where_it_does_not(
    install: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("from mt_core import NameOfTheFuture\n", ">=9,<10")
    misfit = f"it is for mt-core <10,>=9, and this is {mt_core.__version__}"
    assert main(["check", "old"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "cannot import name 'NameOfTheFuture' from 'mt_core'" in said
    assert f"({misfit}: install a release of the one that fits the other)" in said
    (tmp_path / "acme_old.py").write_text("from mt_core import hookimpl\n")
    assert main(["check", "old", "--strict"]) == 1
    assert f"problem: {misfit}" in " ".join(capsys.readouterr().out.split())


def test_no_public_name_goes_without_its_step_on_the_ladder() -> None:
    before = json.loads(API.read_text())
    listed = {*mt_core.__all__, *deprecation.DEPRECATED, *deprecation.MOVED}
    gone = sorted({*before["mt_core"]} - listed)
    assert all(name in deprecation.REMOVED for name in gone), f"{gone} went without a warning: see mt_core.deprecation"
    assert not gone or before["api"] < mt_core.API_VERSION, "something went, so API_VERSION grows"
    hooks = sorted({*before["hooks"]} - {*CORE_KINDS.hooks})
    assert not hooks or before["api"] < mt_core.API_VERSION, f"hooks {hooks} went, so API_VERSION grows"


def test_what_warns_goes_in_the_release_that_it_named_and_what_is_gone_was_due() -> None:
    """Fails in the first build of that release, so that what was announced is done there or announced anew."""
    here = Version(mt_core.__version__).release
    late = {name for name, old in deprecation.DEPRECATED.items() if Version(old.gone_in).release <= here}
    assert late == set(), "move them to REMOVED, and let API_VERSION grow"
    early = {name for name, old in deprecation.REMOVED.items() if Version(old.gone_in).release > here}
    assert early == set(), "they warn until then"
    assert {name: old.now for name, old in deprecation.DEPRECATED.items() if not hasattr(*public(name, old.now))} == {}


def public(old: str, now: str) -> tuple[object, str]:
    """The module of an old name, and the name that it is now."""
    part = old.rpartition(".")[0]
    return importlib.import_module(f"mt_core.{part}".rstrip(".")), now


def test_each_warning_in_the_sources_names_a_release_that_is_yet_to_come() -> None:
    """Hooks and options warn where they stand; names do so through the table."""
    here = Version(mt_core.__version__).release
    calls = [
        (path.name, ast.unparse(node))
        for pattern in ("*/src/**/*.py", "plugins/*/src/**/*.py")
        for path in ROOT.glob(pattern)
        if "MtDeprecationWarning(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("MtDeprecationWarning")
    ]
    for place, call in calls:
        named = re.search(r"goes in [\w-]+ (\d+\.\d+)", call)
        assert named is not None, f"{place}: {call} does not say 'goes in DISTRIBUTION RELEASE'"
        assert Version(named[1]).release > here, f"{place}: {call} was to go by now"
