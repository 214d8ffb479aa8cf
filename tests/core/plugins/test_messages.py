"""What the host says, word for word; in this process, from the same wheels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mt_core.components import Component
from mt_core.errors import ComponentError, DuplicateComponentError, PluginLoadError, UnknownComponentError
from mt_core.plugins.host import Offer, Plugin, PluginHost
from mt_core.plugins.metadata import GROUP, PluginInfo, Selection, find_plugins

Install = Callable[..., Path]


def refusal(kind: str, name: str, block: tuple[str, ...] = ()) -> ComponentError:
    host = PluginHost.discover(Selection.from_environment(block))
    with pytest.raises(ComponentError) as caught:
        host.get(kind, name)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_failed_plugin_is_refused_with_its_version_and_its_cause_is_told_once(installs: Install) -> None:
    installs("acme-import")
    assert PluginHost.discover().notices == [
        "plugin 'import' (acme-import 1.1) not loaded: ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
    ]
    for name in ("import", "acme-import/anything"):
        error = refusal("schedule", name)
        assert type(error) is PluginLoadError
        assert str(error) == (
            f"schedule {name!r} is not available: plugin 'import' (acme-import 1.1) failed to load;"
            " `mt-plugins check import` shows why."
        )


def test_an_unknown_name_gets_the_nearest_what_is_installed_and_what_failed(installs: Install) -> None:
    installs("acme-exit", "acme-good")
    error = refusal("schedule", "stedy")
    ours = sorted(folder.name for folder in (Path(__file__).parents[3] / "plugins").iterdir())
    blocked = ", ".join(f"{name!r} (mt-plugin-{name} 0.1.0)" for name in ours if name != "standard")
    assert type(error) is UnknownComponentError
    assert str(error) == (
        "no schedule named 'stedy'. Did you mean 'steady'? Installed: steady (acme-good 1.0); constant, cosine"
        " (mt-plugin-standard 0.1.0). Plugin 'exit' (acme-exit 1.2) failed to load and may offer it;"
        " `mt-plugins check exit` shows why."
        f" Blocked: {blocked}."
        " `mt-plugins list --components` shows what each distribution offers."
    )


def test_two_plugins_with_one_name_are_both_named_with_both_ways_out(installs: Install) -> None:
    installs("acme-second", "acme-first")
    error = refusal("schedule", "twice")
    assert type(error) is DuplicateComponentError
    assert str(error) == (
        "schedule 'twice' is offered by 2 plugins: first (acme-first 1.8) and second (acme-second 1.9); none of them"
        " wins. To go on, choose one, for instance --schedule acme-first/twice, or block one with --block-plugin"
        " acme-second."
    )


@pytest.mark.parametrize("way_out", ["acme-second/twice", "acme_second/twice"])
def test_a_name_in_full_is_never_ambiguous(way_out: str, installs: Install) -> None:
    installs("acme-second", "acme-first")
    assert PluginHost.discover().get("schedule", way_out).plugin.distribution == "acme-second"


@pytest.mark.parametrize("blocked", ["first", "acme-first", "ACME_first"])
def test_blocking_one_of_two_leaves_the_other(blocked: str, installs: Install) -> None:
    installs("acme-second", "acme-first")
    host = PluginHost.discover(Selection.from_environment([blocked]))
    assert host.get("schedule", "twice").plugin.distribution == "acme-second"
    assert "acme_first" not in sys.modules


def test_a_stand_in_of_another_name_says_how_to_choose_it(installs: Install) -> None:
    installs("acme-wave")
    error = refusal("schedule", "wave")
    number = next(plugin.version for plugin in find_plugins(Selection()) if plugin.distribution == "acme-wave")
    assert str(error) == (
        f"schedule 'wave' of acme-wave {number} stands in for the built-in 'cosine' and is never meant by its bare name."
        " Choose it with --schedule acme-wave/wave."
    )


def test_a_name_that_blocks_nothing_is_said(installs: Install) -> None:
    installs("acme-good")
    host = PluginHost.discover(Selection.from_environment(["god", "llama"]))
    assert host.notices == [
        "no installed plugin is named 'god': blocking or allowing it has no effect. Did you mean 'good'?"
        " `mt-plugins list` shows what is installed."
    ]


def test_plugins_come_in_the_order_of_their_distributions_whatever_the_path(installs: Install) -> None:
    installs("acme-second", "acme-good", "acme-first")
    found = [plugin.distribution for plugin in find_plugins(Selection())]
    assert found == sorted(found)
    assert [plugin.info.distribution for plugin in PluginHost.discover().plugins] == found


def test_every_broken_plugin_at_once_stops_nobody(installs: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    installs("all")
    monkeypatch.delenv("MT_PLUGINS")
    monkeypatch.setenv("CANARY", "/dev/null")
    host = PluginHost.discover()
    assert host.get("schedule", "cosine").plugin.distribution == "mt-plugin-standard"
    assert host.get("schedule", "steady").plugin.distribution == "acme-good"
    failed = {plugin.info.distribution for plugin in host.plugins if plugin.status == "failed"}
    whole = {"good", "first", "second", "replaces", "canary", "wave", "size", "poems"}
    mine = {plugin.info.distribution for plugin in host.plugins if plugin.info.distribution.startswith("acme-")}
    assert failed == mine - {f"acme-{name}" for name in whole}
    assert all(plugin.error and "\n" not in plugin.error for plugin in host.plugins if plugin.status == "failed")


def plugin_offering(name: str, distribution: str) -> Plugin:
    """A loaded plugin with the schedule ``twice``."""
    point = EntryPoint(name, "nowhere", GROUP)
    info = PluginInfo(name, distribution, "1.0", "nowhere", "/", blocked=False, entry_point=point)
    return Plugin(info, [Offer("schedule", Component(name="twice", summary="a schedule"), info)])


@pytest.mark.parametrize(
    ("first", "second", "ways_out"),
    [
        (("x", "a"), ("x", "b"), "choose one, for instance --schedule a/twice, or block one with --block-plugin b."),
        (("x", "a"), ("y", "a"), "block one with --block-plugin y."),
        (("b", "a"), ("y", "b"), "choose one, for instance --schedule a/twice, or block one with --block-plugin y."),
    ],
    ids=["one entry point's name", "one distribution", "a distribution named as the other's entry point"],
)
def test_every_way_out_that_is_named_leads_out(first: tuple[str, str], second: tuple[str, str], ways_out: str) -> None:
    plugins = [plugin_offering(*first), plugin_offering(*second)]
    with pytest.raises(DuplicateComponentError) as caught:
        PluginHost(plugins, []).get("schedule", "twice")
    assert str(caught.value).endswith(f" To go on, {ways_out}")
    selection = Selection(frozenset({ways_out.rstrip(".").split()[-1]}))
    left = [plugin for plugin in plugins if not selection.blocks(plugin.info.name, plugin.info.distribution)]
    assert PluginHost(left, []).get("schedule", "twice").plugin is plugins[0].info
