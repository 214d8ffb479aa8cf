"""Recipes by name: unknown ones, those of a distribution that is not here, and those without a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from mt_core.errors import ComponentError, UnknownComponentError
from mt_train.assemble.discovery import load_plugins
from mt_train.cli.train import main
from mt_train.plugins.recipes import KIND, read_recipe, recipe_file

HOST = load_plugins()


def test_an_unknown_recipe_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownComponentError, match=r"no recipe named 'qlorra'\. Did you mean 'qlora'\?"):
        list(read_recipe("qlorra", HOST))


def test_a_recipe_that_was_not_packed_is_told_with_its_file() -> None:
    offer = HOST.get(KIND, "lora")
    with pytest.raises(ComponentError, match=r"has no file .*recipes.lorax\.yaml; ship it as package data"):
        recipe_file(replace(offer, component=replace(offer.component, name="lorax")))


def test_a_key_that_a_plugin_no_longer_has_is_told_with_recipe_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lora.yaml"
    file.write_text("# once\nobjective: sft\nadapter: {name: lora, ranks_of_all: 4}\n")
    monkeypatch.setattr(sys.modules["mt_train.plugins.recipes"], "recipe_file", lambda offer: file)
    assert main(["--recipe", "lora", "--model", "llama"]) == 2
    assert "adapter.ranks-of-all: no such key." in (said := capsys.readouterr().err)
    assert "(recipe lora, line 3)" in said


def test_recipes_are_listed_with_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    from mt_core.cli.plugins import main as plugins

    assert plugins(["recipes"]) == 0
    lines: Iterable[str] = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.strip()} >= {"kind", "recipe"}
    assert not any(line.startswith(("model", "adapter")) for line in lines)
