"""Notices and warnings of the installed plugins."""

from __future__ import annotations

import pytest

from mt_core.plugins.host import PluginHost
from mt_train.assemble import discovery
from mt_train.assemble.discovery import tell_misfits
from mt_train.plugins.resolve import resolve


def test_a_run_says_once_of_each_plugin_it_uses_that_is_for_another_core(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offers = resolve({"model": "llama"}, PluginHost.discover()).offers
    tell_misfits(offers.values())
    assert capsys.readouterr().err == ""
    misfits = {"llama": "it is for mt-core <0.1, and this is 0.1.0", "qwen": "nobody asks"}
    monkeypatch.setattr(discovery, "out_of_range", lambda plugin: misfits.get(plugin.name, ""))
    tell_misfits(offers.values())
    said = capsys.readouterr().err
    assert (
        said.count("plugin 'llama' (mt-plugin-llama 0.1.0): it is for mt-core <0.1, and this is 0.1.0, so it may fail")
        == 1
    )
    assert "nobody asks" not in said, "a plugin that a run does not use says nothing"
