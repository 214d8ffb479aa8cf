"""A new distribution before and while it is written: names that are refused, and files that are never overwritten."""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from mt_core import __version__
from mt_core.cli.plugins import main
from mt_core.errors import OutputError, UsageError
from mt_core.kinds import CORE_KINDS
from mt_core.scaffold import Distribution, draft

Captured = pytest.CaptureFixture[str]
KINDS = {kind.replace("_", "-"): kind for kind in CORE_KINDS.templates}
MAJOR, MINOR = __version__.split(".")[:2]
RELEASES = f">={MAJOR}.{MINOR},<{MAJOR}.{int(MINOR) + 1}"


def project_of(plugin: Distribution) -> dict[str, Any]:
    """The table ``project`` of a new plugin's ``pyproject.toml``."""
    (text,) = [text for place, text in plugin.files.items() if place.name == "pyproject.toml"]
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


@pytest.mark.parametrize("name", ["q", "poly-2", "a-name-of-thirty-characters-ab", "layer", "state", "class"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_name_gives_python_that_parses_and_one_entry_point(kind: str, name: str) -> None:
    plugin = draft(kind, name, CORE_KINDS.templates)
    files = {str(place): text for place, text in plugin.files.items()}
    for place, text in files.items():
        assert "$" not in text.replace("${{ matrix.python }}", ""), f"{place} has a placeholder that nobody filled in"
        if place.endswith(".py"):
            ast.parse(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    package = plugin.project.replace("-", "_")
    assert project["name"] == f"mt-plugin-{name}"
    assert project["entry-points"]["mt_core.plugins"] == {name: f"{package}.plugin"}
    assert {f"src/{package}/plugin.py", f"src/{package}/py.typed", "LICENSE", "README.md", "CHANGELOG.md"} <= set(files)
    assert f"mt-core{RELEASES}" in project["dependencies"]


@pytest.mark.parametrize(
    ("given", "name"), [("Poly", "poly"), ("my_rate", "my-rate"), ("mt-plugin-rate", "rate"), (" rate ", "rate")]
)
def test_a_name_may_be_written_in_other_ways(given: str, name: str) -> None:
    assert draft("schedule", given, CORE_KINDS.templates).name == name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("../up", "Did you mean 'up'?"),
        ("a/b", "Did you mean 'a-b'?"),
        ("two--dashes", "Did you mean 'two-dashes'?"),
        ("end-", "Did you mean 'end'?"),
        ("2fast", "Did you mean 'fast'?"),
        ("", "lower-case letters"),
        ("$name", "Did you mean 'name'?"),
        ("naïve", "Did you mean"),
        ("x" * 31, "up to 30"),
        ('x"\nimport os', "Did you mean 'x-import-os'?"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_with_one_that_can(given: str, said: str) -> None:
    with pytest.raises(UsageError, match="is no name for a plugin") as caught:
        draft("model", given, CORE_KINDS.templates)
    assert said in str(caught.value)


@pytest.mark.parametrize(("kind", "name"), [("model", "train"), ("model", "model"), ("objective", "token")])
def test_a_name_whose_class_would_hide_one_of_the_core_is_refused(kind: str, name: str) -> None:
    with pytest.raises(UsageError, match=r"would give a second '(TrainModel|ModelConfig|TokenObjective)'"):
        draft(kind, name, CORE_KINDS.templates)


@pytest.mark.parametrize("name", ["none", "null", "true", "no", "off"])
def test_a_name_that_a_config_reads_as_something_else_is_refused(name: str) -> None:
    assert not isinstance(yaml.safe_load(name), str) or name == "none"
    with pytest.raises(UsageError, match="means something else than a name in a config"):
        draft("schedule", name, CORE_KINDS.templates)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'optimizer'"):
        draft("optimiser", "x", CORE_KINDS.templates)


def test_nothing_is_overwritten_and_nothing_is_left_of_what_could_not_be_written(tmp_path: Path) -> None:
    plugin = draft("schedule", "rate", CORE_KINDS.templates)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="exists already, and nothing is overwritten"):
        plugin.write(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made: Not a directory"):
        plugin.write(tmp_path / "file" / "rate")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["schedule", "cosine"],
            "schedule 'cosine' is offered by mt-plugin-standard 0.1.0 already; choose another name",
        ),
        (["schedule", "llama"], "mt-plugin-llama 0.1.0 is installed already, and pip would replace it; choose another"),
        (["adaptor", "x"], "no template for 'adaptor'"),
    ],
)
def test_a_name_that_is_taken_here_is_refused(words: list[str], said: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["new", *words, "--output", str(tmp_path / "new")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_it_ends_with_the_next_commands(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "schedule", "my_rate"]) == 0
    assert capsys.readouterr().out.endswith(
        "next:\n  cd mt-plugin-my-rate\n  pip install -e '.[test]'\n  pytest\n"
        "  mt-train --model llama --schedule my-rate\n"
    )
    assert main(["new", "schedule", "third", "--block-plugin", "llama"]) == 0
    assert "  pip install -e '.[test]' mt-plugin-llama\n" in capsys.readouterr().out, "what it is tried with"
    assert (tmp_path / "mt-plugin-my-rate" / ".github" / "workflows" / "tests.yml").is_file()
    assert main(["new", "schedule", "other", "--output", "a folder", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["new"]
    assert told["next"][0] == "cd 'a folder'"
    assert {str(path.relative_to("a folder")) for path in Path("a folder").rglob("*") if path.is_file()} == set(
        told["files"]
    )


def test_a_kind_that_a_plugin_brings_may_have_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "acme_templates" / "templates" / "filter"
    (folder / "package").mkdir(parents=True)
    (tmp_path / "acme_templates" / "__init__.py").write_text("")
    about = 'summary = "A filter"\ntry_it = "mt-train --row-filters {name}"\n[modules]\n"plugin.py" = "the filter"\n'
    (folder / "template.toml").write_text(about)
    (folder / "package" / "plugin.py.tmpl").write_text('NAME = "$name"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    places = {**CORE_KINDS.templates, "row_filter": "acme_templates:templates/filter", "broken": "acme_none:templates"}
    plugin = draft("row-filter", "tidy", places)
    files = {str(place): text for place, text in plugin.files.items()}
    assert files["src/mt_plugin_tidy/plugin.py"] == 'NAME = "tidy"\n'
    assert plugin.kind.kind == "row_filter"
    bringers = {"row_filter": ("acme-filters", "1.4.2rc1"), "callback": ("acme-other", "unknown")}
    brought = draft("row-filter", "tidy", places, bringers)
    assert project_of(plugin)["dependencies"] == [f"mt-core{RELEASES}", "pydantic>=2.11,<3"]
    assert project_of(brought)["dependencies"] == ["acme-filters>=1.4,<1.5", f"mt-core{RELEASES}", "pydantic>=2.11,<3"]
    assert "acme-other" in project_of(draft("callback", "tidy", places, bringers))["dependencies"], (
        "no version, no range"
    )
    with pytest.raises(UsageError, match="the template of kind 'broken' at acme_none:templates cannot be read"):
        draft("broken", "x", places)


@pytest.mark.parametrize(
    ("kind", "bringer"),
    [
        ("evaluation", "mt-train"),
        ("encoder", "mt-train"),
        ("projector", "mt-train"),
        ("metric", "mt-plugin-evals"),
        ("preference-loss", "mt-plugin-alignment"),
        ("reward", "mt-plugin-alignment"),
        ("sampler", "mt-plugin-alignment"),
    ],
)
def test_a_plugin_of_a_brought_kind_depends_on_who_brings_it(
    kind: str, bringer: str, tmp_path: Path, capsys: Captured
) -> None:
    folder = tmp_path / kind
    assert main(["new", kind, "my-own", "--output", str(folder)]) == 0
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert f"{bringer}{RELEASES}" in project["dependencies"]
    assert ("train" in project["optional-dependencies"]) == (bringer != "mt-train"), "what is required needs no extra"
    assert main(["new", kind, "my-own", "--output", str(tmp_path / "x"), "--block-plugin", bringer]) == (
        0 if bringer == "mt-train" else 2
    ), "a kind that nobody brings has no template"
