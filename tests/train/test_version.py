"""``--version`` of every command of the workspace."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.needs("mt-plugin-alignment"), pytest.mark.needs("mt-plugin-search")]

ROOT = Path(__file__).parents[2]
PROJECTS = [
    tomllib.loads(path.read_text())["project"]
    for folder in ("core", "train", "tools", "conformance", "plugins/*")
    for path in sorted(ROOT.glob(f"{folder}/pyproject.toml"))
]
ENTRIES = {command: entry for project in PROJECTS for command, entry in project.get("scripts", {}).items()}
HOMES = {command: project["name"] for project in PROJECTS for command in project.get("scripts", ())}
"""Command → the distribution that brings it."""

ASK = """
import contextlib, importlib, io, json, sys
said = {}
for command, entry in json.loads(sys.argv[1]).items():
    module, _, name = entry.partition(":")
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        getattr(importlib.import_module(module), name)(["--version"])
    said[command] = out.getvalue()
heavy = sorted({"deepspeed", "matplotlib", "torch", "transformers"} & sys.modules.keys())
print(json.dumps({"said": said, "heavy": heavy}))
"""


@cache
def answers() -> dict[str, Any]:
    """Answers of all commands in one fresh process, and which heavy packages it has imported."""
    line = [sys.executable, "-c", ASK, json.dumps(ENTRIES)]
    result: dict[str, Any] = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    return result


@pytest.mark.parametrize("command", HOMES)
def test_a_command_names_the_distribution_that_it_comes_with(command: str) -> None:
    home = HOMES[command]
    below = "" if home == "mt-core" else f" (mt-core {version('mt-core')})"
    assert answers()["said"][command] == f"{home} {version(home)}{below}\n"


def test_to_say_a_version_imports_nothing_heavy() -> None:
    assert answers()["heavy"] == []
