"""``mt-plugins`` with plugins from real wheels: what it prints, and its exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_core import __version__
from mt_core.cli.plugins import main

Install = Callable[..., Path]
Captured = pytest.CaptureFixture[str]
OURS = sorted(folder.name for folder in (Path(__file__).parents[3] / "plugins").iterdir())
"""Plugins of this repository, which are installed beside those of a test and blocked."""


def envelope(capsys: Captured, *words: str) -> list[dict[str, Any]]:
    """The plugins of a JSON answer, after a look at what is around them."""
    main([*words, "--json"])
    content = json.loads(capsys.readouterr().out)
    assert {key: value for key, value in content.items() if key != "plugins"} == {"schema": 1, "core": __version__}
    assert isinstance(content["plugins"], list)
    return list(content["plugins"])


def test_list_says_what_metadata_knows_and_imports_nothing(installs: Install, capsys: Captured) -> None:
    site = installs("acme-import", "acme-good")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "distribution", "version", "status", "location"]
    assert lines[1].split() == ["good", "acme-good", "1.0", "installed", str((site / "acme-good").resolve())]
    assert lines[2].split()[:4] == ["import", "acme-import", "1.1", "installed"]
    assert not {"acme_good", "acme_import"} & set(sys.modules)


def test_list_shows_what_is_blocked_and_by_which_ways(
    installs: Install, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs("acme-first", "acme-second", "acme-good")
    monkeypatch.setenv("MT_BLOCK_PLUGINS", "second")
    found = {plugin["distribution"]: plugin["status"] for plugin in envelope(capsys, "list", "--block-plugin", "good")}
    assert found["acme-good"] == found["acme-second"] == "blocked"
    assert found["mt-plugin-llama"] == "blocked", "MT_PLUGINS allows only what it names"
    assert found["acme-first"] == found["mt-plugin-standard"] == found["mt-train"] == "installed"


@pytest.mark.parametrize("words", [["list"], ["list", "--components"], ["check"], ["info", "good"]], ids=" ".join)
def test_a_name_that_blocks_nothing_is_warned_of_beside_the_data(
    words: list[str], installs: Install, capsys: Captured
) -> None:
    installs("acme-good")
    assert main([*words, "--json", "--block-plugin", "god"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["schema"] == 1
    assert "warning: no installed plugin is named 'god'" in printed.err
    assert "Did you mean 'good'?" in printed.err


def test_components_are_a_sorted_table_and_failures_come_with_their_cause(installs: Install, capsys: Captured) -> None:
    installs("acme-import", "acme-good")
    assert main(["list", "--components"]) == 0
    table, absent = capsys.readouterr().out.split("\n\n")
    head, *rows = table.splitlines()
    assert head.split() == ["kind", "name", "plugin", "status", "summary"]
    assert [row.split()[:2] for row in rows] == sorted(row.split()[:2] for row in rows)
    assert ["schedule", "steady", "acme-good", "loaded", "a", "schedule"] in [row.split() for row in rows]
    assert absent == (
        "failed   import (acme-import 1.1): ModuleNotFoundError: No module named 'a_module_that_nobody_has'\n"
        + "".join(f"blocked  {name} (mt-plugin-{name} 0.1.0)\n" for name in OURS if name != "standard")
    )


POEMS = """\
dataset acme-poems/poems: poems, one file each
  source: https://example.org/poems
  layouts: zero0, zero1, zero2, zero3
  devices: cpu, cuda
  options:
    --dataset.path        str                 required      folder of poems
    --dataset.languages   list of str         default none  languages to keep; none keeps all
    --dataset.rate        float or none (>= 0)  default none  read ahead (poems per second)
"""


def test_info_shows_every_option_with_type_bounds_default_and_description(installs: Install, capsys: Captured) -> None:
    installs("acme-poems")
    assert main(["info", "poems"]) == 0
    printed = capsys.readouterr().out
    squeezed = [" ".join(line.split()) for line in printed.splitlines()]
    for line in POEMS.splitlines():
        assert " ".join(line.split()) in squeezed
    assert "--dataset.metre.feet int (> 0, <= 8) default 5 length of a line (feet)" in squeezed
    assert "--dataset.metre.foot iamb | trochee default iamb which foot" in squeezed
    assert "small (default) vocab_size 9, max_seq_len 4" in squeezed
    assert "large vocab_size 9, max_seq_len 4, dim 16" in squeezed


@pytest.mark.parametrize("name", ["verse", "acme-poems/verse", "ACME_poems/verse"])
def test_info_of_a_component_shows_that_component_alone(name: str, installs: Install, capsys: Captured) -> None:
    installs("acme-poems")
    (plugin,) = envelope(capsys, "info", name)
    assert [component["kind"] for component in plugin["components"]] == ["model", "train_model"]
    family, trained = plugin["components"]
    assert trained["options"] == [], "a trained model has the options of its family"
    assert family["qualified"] == "acme-poems/verse"
    assert family["default_variant"] == "small"
    assert family["variants"]["large"]["dim"] == 16
    dim = next(option for option in family["options"] if option["key"] == "model.dim")
    assert dim == {
        "key": "model.dim",
        "type": "int",
        "required": False,
        "default": 8,
        "bounds": "> 0",
        "description": "width (channels)",
    }
    assert trained["schema"] is None
    assert family["schema"]["properties"]["dim"] == {
        "default": 8,
        "description": "width (channels)",
        "exclusiveMinimum": 0,
        "title": "Dim",
        "type": "integer",
    }


def test_info_of_a_shared_name_shows_both(installs: Install, capsys: Captured) -> None:
    installs("acme-first", "acme-second")
    assert [plugin["distribution"] for plugin in envelope(capsys, "info", "twice")] == ["acme-first", "acme-second"]


def test_info_of_a_plugin_that_failed_gives_the_cause(installs: Install, capsys: Captured) -> None:
    installs("acme-exit")
    assert main(["info", "acme-exit"]) == 0
    assert "plugin exit (acme-exit 1.2): failed\n  error: SystemExit: bye\n" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "near"), [(["info", "stedy"], "steady"), (["check", "goood"], "good")])
def test_an_unknown_name_ends_with_2_and_the_nearest(
    words: list[str], near: str, installs: Install, capsys: Captured
) -> None:
    installs("acme-good", "acme-exit")
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    known = ", ".join(["exit", "good", *OURS, "train"])
    assert f"is named {words[1]!r}. Did you mean {near!r}? Installed plugins: {known}." in printed.err
    blocked = ", ".join(f"{name} (mt-plugin-{name} 0.1.0)" for name in OURS if name != "standard")
    assert f"Failed or blocked: exit (acme-exit 1.2), {blocked}." in printed.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["check"], 0),
        (["check", "--strict"], 1),
        (["check", "good"], 0),
        (["check", "good", "--strict"], 0),
        (["check", "import"], 1),
        (["check", "acme-import", "--json"], 1),
        (["check", "--strict", "--block-plugin", "import"], 0),
        (["check", "--strict", "--block-plugin", "import", "--block-plugin", "nobody"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_check_exits_1_for_a_named_failure_or_any_problem_when_strict(
    words: list[str], code: int, installs: Install, capsys: Captured
) -> None:
    installs("acme-good", "acme-import")
    assert main(words) == code


def test_check_prints_one_line_a_plugin_and_its_problems(installs: Install, capsys: Captured) -> None:
    installs("acme-first", "acme-second", "acme-typo", "acme-size")
    assert main(["check"]) == 0
    printed = capsys.readouterr().out
    assert "problem: schedule 'twice' is also offered by acme-second 1.9; name it as acme-first/twice\n" in printed
    assert "failed   typo (acme-typo 1.3)\n         problem: it implements the hook 'mt_schedule', which" in printed
    assert "size 'one' of model 'shrunk' is refused by its own config: model.vocab-size:" in printed
    assert "\nok       standard (mt-plugin-standard 0.1.0): 1" in printed
    problems = {plugin["name"]: plugin["problems"] for plugin in envelope(capsys, "check")}
    assert problems["standard"] == []
    assert len(problems["first"]) == len(problems["second"]) == len(problems["size"]) == 1


@pytest.mark.parametrize("words", [["list", "--components"], ["info", "poems"], ["check"]], ids=" ".join)
def test_what_a_plugin_prints_stays_out_of_the_data(words: list[str], installs: Install, capsys: Captured) -> None:
    installs("acme-poems")
    envelope(capsys, *words)


def test_check_says_that_nothing_is_installed(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt_core.plugins.host.find_plugins", lambda selection: [])
    assert main(["check"]) == 0
    assert capsys.readouterr().out == "no plugin is installed\n"
