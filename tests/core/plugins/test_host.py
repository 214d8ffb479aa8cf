"""Plugins from real wheels: the good ones work, the bad ones are named, and nothing wins silently."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Environment = Callable[..., dict[str, str]]
HOME = {"plugins": "mt_core", "train": "mt_train"}
"""Where a command is."""


def command(module: str, *words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", f"{HOME[module]}.cli.{module}", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_an_installed_plugin_is_listed_and_usable(environment: Environment) -> None:
    env = environment("acme-good")
    assert "acme-good" in command("plugins", "list", env=env).stdout
    result = command("train", "--model", "llama", "--schedule", "steady", "--print-config", env=env)
    assert result.returncode == 0, result.stderr
    assert "name: steady" in result.stdout


BROKEN = {
    "import": ["ModuleNotFoundError", "a_module_that_nobody_has"],
    "exit": ["SystemExit", "bye"],
    "typo": ["'mt_schedule', which does not exist", "Did you mean 'mt_schedules'?"],
    "arguments": ["mt_schedules(config) has arguments, and hooks are called without any"],
    "defaults": [
        "mt_schedules(config=None) has arguments, and hooks are called without any",
        "also those with defaults",
    ],
    "unmarked": ["mt_schedules is not marked with @mt_core.hookimpl"],
    "dict": ["mt_schedules returned a dict; it must return a list of Component"],
    "constant": ["mt_schedules is not marked with @mt_core.hookimpl"],
    "strings": ["mt_schedules returned 'steady'; every item must be a Component"],
    "raises": ["KeyError: 'rate'"],
    "wrapper": ["mt_schedules is a hook wrapper"],
    "misnomer": ["replaces='cosin', which is no built-in schedule", "Did you mean 'cosine'?"],
    "builtin": ["schedule 'cosine' is a built-in name", "replaces='cosine'"],
    "reserved": ["declares ['name'], which the core reserves"],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_named_with_its_cause_and_stops_nobody_else(name: str, environment: Environment) -> None:
    env = environment(f"acme-{name}")
    result = command("train", "--model", "llama", "--print-config", env=env)
    assert result.returncode == 0, result.stderr
    for words in [f"plugin '{name}' (acme-{name} 1.", "not loaded", *BROKEN[name]]:
        assert words in result.stderr, (words, result.stderr)
    assert "Traceback" not in result.stderr
    check = command("plugins", "check", env=env)
    assert check.returncode == 0
    assert BROKEN[name][0] in check.stdout
    assert command("plugins", "check", "--strict", env=env).returncode == 1


def test_a_run_that_needs_a_broken_plugin_ends_with_its_name_and_cause(environment: Environment) -> None:
    result = command("train", "--model", "llama", "--schedule", "typo", "--print-config", env=environment("acme-typo"))
    assert result.returncode == 2
    for words in ("schedule 'typo' is not available", "acme-typo 1.", "failed to load", "mt-plugins check typo"):
        assert words in result.stderr
    assert result.stderr.count("'mt_schedule', which does not exist") == 1


def test_one_name_offered_twice_is_an_error_only_when_it_is_used(environment: Environment) -> None:
    env = environment("acme-first", "acme-second")
    plain = ["--model", "llama", "--print-config"]
    assert command("train", *plain, env=env).returncode == 0
    clash = command("train", *plain, "--schedule", "twice", env=env)
    assert clash.returncode == 2
    assert (
        "schedule 'twice' is offered by 2 plugins: first (acme-first 1.8) and second (acme-second 1.9); none of them"
        " wins. To go on, choose one, for instance --schedule acme-first/twice, or block one with --block-plugin"
        " acme-second." in clash.stderr
    )
    for way_out in (["--schedule", "acme-second/twice"], ["--schedule", "twice", "--block-plugin", "second"]):
        result = command("train", *plain, *way_out, env=env)
        assert result.returncode == 0, result.stderr
    assert "also offered by acme-second 1.9; name it as acme-first/twice" in command("plugins", "check", env=env).stdout
    assert command("plugins", "check", "--strict", env=env).returncode == 1
    assert command("plugins", "check", "--strict", "--block-plugin", "first", env=env).returncode == 0


def test_a_replacement_of_a_built_in_acts_only_when_it_is_named_in_full(environment: Environment) -> None:
    env = environment("acme-replaces")
    plain = command("train", "--model", "llama", "--print-config", env=env)
    assert plain.returncode == 0
    assert "warmup_ratio" in plain.stdout, "the built-in cosine has options, the stranger's has none"
    named = command("train", "--model", "llama", "--schedule", "acme-replaces/cosine", "--print-config", env=env)
    assert named.returncode == 0, named.stderr
    assert "warmup_ratio" not in named.stdout


@pytest.mark.parametrize("way", ["option", "MT_BLOCK_PLUGINS", "MT_PLUGINS"])
def test_a_blocked_plugin_is_never_imported(way: str, environment: Environment, tmp_path: Path) -> None:
    env = environment("acme-canary", **({way: "acme-canary" if "BLOCK" in way else "llama"} if way != "option" else {}))
    words = ["--block-plugin", "canary"] if way == "option" else []
    result = command("train", "--model", "llama", "--print-config", *words, env=env)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "canary").exists()
    used = command("train", "--model", "llama", "--schedule", "canary", *words, env=env)
    assert used.returncode == 2
    assert "Blocked: 'canary' (acme-canary 1.13)" in used.stderr
    listed = json.loads(command("plugins", "list", "--json", *words, env=env).stdout)
    assert listed["schema"] == 1
    assert {p["name"]: p["status"] for p in listed["plugins"]}["canary"] == "blocked"


def test_listing_imports_no_plugin(environment: Environment, tmp_path: Path) -> None:
    env = environment("acme-canary")
    assert "acme-canary" in command("plugins", "list", env=env).stdout
    assert not (tmp_path / "canary").exists()
    assert "canary" in command("plugins", "list", "--components", env=env).stdout
    assert (tmp_path / "canary").exists()


def test_a_component_of_no_plugin_gets_the_nearest_name(environment: Environment) -> None:
    result = command("train", "--model", "lama", env=environment("acme-import"))
    assert result.returncode == 2
    for words in (
        "no model named 'lama'",
        "Did you mean 'llama'?",
        "llama (mt-plugin-llama",
        "acme-import",
        "may offer it",
    ):
        assert words in result.stderr
    info = command("plugins", "info", "lama", env=environment())
    assert info.returncode == 2
    assert "Did you mean 'llama'?" in info.stderr


POISON = """
import os, sys
POISONED = os.environ.get('POISONED', '').split()
class Poison:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('torch', 'transformers', 'deepspeed', 'datasets', *POISONED):
            raise AssertionError(f'{name} was imported')
sys.meta_path.insert(0, Poison())
import importlib
module, *words = sys.argv[1:]
home = 'mt_train' if module == 'train' else 'mt_core'
sys.exit(importlib.import_module(f'{home}.cli.{module}').main(words))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["plugins", "list"],
        ["plugins", "list", "--components"],
        ["plugins", "info", "llama"],
        ["plugins", "check", "--strict"],
        ["train", "--help"],
        ["train", "--model", "llama", "--help"],
        ["train", "--model", "llama", "--print-config"],
        ["train", "--version"],
    ],
    ids=" ".join,
)
def test_no_torch_is_imported_to_list_or_to_help(words: list[str], environment: Environment) -> None:
    line = [sys.executable, "-c", POISON, *words]
    result = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_a_list_of_metadata_needs_neither_pydantic_nor_pluggy_nor_a_plugin(environment: Environment) -> None:
    env = environment("acme-good", POISONED="pydantic pydantic_core pluggy yaml rich acme_good mt_plugin_llama")
    line = [sys.executable, "-c", POISON, "plugins", "list"]
    result = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "acme-good" in result.stdout


def test_what_a_plugin_prints_stays_out_of_a_printed_config(environment: Environment) -> None:
    result = command("train", "--model", "llama", "--print-config", env=environment("acme-poems"))
    assert result.returncode == 0, result.stderr
    assert "greets" in result.stderr
    assert "greets" not in result.stdout
