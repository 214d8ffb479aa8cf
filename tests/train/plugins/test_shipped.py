"""Names of distributions that are not installed are met with the line that installs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_core.cli.plugins import main as mt_plugins
from mt_core.errors import ConfigError, UnknownComponentError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.discovery import load_plugins
from mt_train.plugins.recipes import read_recipe
from mt_train.plugins.resolve import resolve
from mt_train.plugins.shipped import distribution_of, find_offer


@pytest.fixture
def small_host(monkeypatch: pytest.MonkeyPatch) -> PluginHost:
    """A host as of an installation without adapters, alignment and optim."""
    absent = {"mt-plugin-adapters", "mt-plugin-alignment", "mt-plugin-optim"}
    host = load_plugins()
    found = PluginHost.get

    def get(self: PluginHost, kind: str, name: str):  # type: ignore[no-untyped-def]
        offer = found(self, kind, name)
        if offer.plugin.distribution in absent:
            raise UnknownComponentError(f"no {kind} named {name!r}.")
        return offer

    monkeypatch.setattr(host, "plugins", [each for each in host.plugins if each.info.distribution not in absent])
    monkeypatch.setattr(PluginHost, "get", get)
    return host


@pytest.mark.parametrize(
    ("kind", "name", "distribution"),
    [
        ("adapter", "dora", "mt-plugin-adapters"),
        ("schedule", "linear", "mt-plugin-optim"),
        ("objective", "dpo", "mt-plugin-alignment"),
        ("recipe", "dpo", "mt-plugin-alignment"),
        ("adapter", "DoRA", "mt-plugin-adapters"),
    ],
)
def test_a_name_of_a_distribution_that_is_not_here_is_met_with_its_pip_line(
    small_host: PluginHost, kind: str, name: str, distribution: str
) -> None:
    with pytest.raises(UnknownComponentError, match=f"which is not installed here: pip install {distribution}$"):
        find_offer(small_host, kind, name)


def test_a_run_and_a_recipe_say_so(small_host: PluginHost) -> None:
    with pytest.raises(ConfigError, match="adapter 'dora' comes with mt-plugin-adapters"):
        resolve({"model": "llama", "adapter": "dora"}, small_host)
    with pytest.raises(UnknownComponentError, match="recipe 'dpo' comes with mt-plugin-alignment"):
        list(read_recipe("dpo", small_host))


def test_a_new_plugin_that_is_not_installed_is_met_with_its_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mt_plugins(["new", "adapter", "shy-lora"]) == 0
    host, folder = load_plugins(), tmp_path / "mt-plugin-shy-lora"
    for place, given in ((tmp_path, "mt-plugin-shy-lora"), (folder, ".")):
        monkeypatch.chdir(place)
        with pytest.raises(UnknownComponentError, match=f"{folder} is a plugin of that name: pip install -e {given}$"):
            find_offer(host, "adapter", "shy_lora")
    (folder / "pyproject.toml").write_text("project = [")
    with pytest.raises(UnknownComponentError, match="Installed: "):
        find_offer(host, "adapter", "shy-lora")


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("model", "model.weights"),
        ("dataset", "dataset.path"),
        ("tokenizer", "tokenizer.path"),
        ("adapter", "adapter.weights"),
    ],
)
def test_a_path_in_the_place_of_a_name_is_met_with_its_key(
    kind: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jsonl2").mkdir()
    with pytest.raises(UnknownComponentError, match=rf"named 'jsonl2', which is a path here: --{key} jsonl2 gives it$"):
        find_offer(load_plugins(), kind, "jsonl2")
    for odd in ("x" * 5000, "a\0b"):
        with pytest.raises(UnknownComponentError, match="Installed: "):
            find_offer(load_plugins(), kind, odd)


@pytest.mark.parametrize(
    ("kind", "options"), [("model", "--model.weights"), ("dataset", "--dataset hf --dataset.path")]
)
def test_a_name_on_the_hub_in_the_place_of_a_name_is_met_with_its_options(kind: str, options: str) -> None:
    with pytest.raises(UnknownComponentError, match=rf"may be a name on the Hub: {options} acme/one-7B@main gives it$"):
        find_offer(load_plugins(), kind, "acme/one-7B@main")


def test_a_name_that_nobody_offers_is_answered_with_the_nearest() -> None:
    assert distribution_of("adapter", "dorra") is None
    with pytest.raises(UnknownComponentError, match="Did you mean"):
        find_offer(load_plugins(), "adapter", "dorra")
