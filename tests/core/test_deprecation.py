"""Names that were public here: the error says where they are now."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from mt_core.cli.plugins import main
from mt_core.deprecation import MOVED
from mt_train import load_config


@pytest.mark.parametrize("name", MOVED)
def test_a_name_that_moved_is_where_its_error_says(name: str) -> None:
    package, _, public = f"mt_core.{name}".rpartition(".")
    module, _, there = MOVED[name].partition(":")
    with pytest.raises(ImportError, match=rf"write from {module} import {there or public} \(pip install mt-t"):
        exec(f"from {package} import {public}")
    assert hasattr(importlib.import_module(module), there or public)


@pytest.mark.parametrize(("module", "now"), [("testing", "mt_conformance"), ("command", "mt_train.command")])
def test_a_module_that_moved_is_where_its_error_says(module: str, now: str) -> None:
    with pytest.raises(ImportError, match=now):
        importlib.import_module(f"mt_core.{module}")
    importlib.import_module(now)


def test_a_plugin_for_the_kit_of_then_is_told_where_the_kit_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "acme_then-1.0.dist-info"
    info.mkdir()
    (tmp_path / "acme_then.py").write_text("from mt_core.testing import BaseAdapterConformance\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-then\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mt_core.plugins]\nthen = acme_then\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", "then"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "then (acme-then 1.0)" in said
    assert "mt_core.testing is the distribution mt-conformance now: pip install mt-conformance" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("slot", "name"), [("adapter", "full"), ("optimizer", "adamw"), ("dataset", "demo")])
def test_what_was_built_into_the_core_is_found_by_the_name_that_it_had(slot: str, name: str, kit_model: None) -> None:
    then = load_config({"model": "kit-tiny", slot: f"mt-core/{name}"}).model_dump()
    now = load_config({"model": "kit-tiny", slot: f"mt-plugin-standard/{name}"}).model_dump()
    assert str(then).replace("mt-core/", "") == str(now).replace("mt-plugin-standard/", "")
