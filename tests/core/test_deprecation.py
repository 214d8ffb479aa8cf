"""Names that were public here: the error says where they are now."""

from __future__ import annotations

import importlib

import pytest

from mt_core.deprecation import MOVED


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
