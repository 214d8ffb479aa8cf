"""What stands around the sources agrees with them: the hosted check, hooks before a commit, templates, groups of packages, promises."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mt_core

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
PROJECTS = {path.parent for path in ROOT.glob("**/pyproject.toml") if path.parent != ROOT and "tests" not in path.parts}
SCHEMAS = {
    "github-workflows": [*GITHUB.glob("workflows/*.yml")],
    "dependabot": [GITHUB / "dependabot.yml"],
    "github-issue-forms": [path for path in GITHUB.glob("ISSUE_TEMPLATE/*.yml") if path.stem != "config"],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "readthedocs": [ROOT / ".readthedocs.yaml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
"""Schema that the host or the format publishes, as check-jsonschema brings it → files."""
DEVELOPERS = {
    *("sphinx", "furo", "myst-parser", "mypy", "ruff", "import-linter", "pre-commit", "build", "hypothesis", "pytest"),
    *("peft", "trl", "gguf", "datasets", "pyarrow", "bitsandbytes", "optuna", "mlflow", "wandb", "lm-eval", "vllm"),
    *("scikit-learn", "openai", "pytorch-optimizer", "schedulefree", "galore-torch", "apollo-torch", "mt-conformance"),
}
"""Packages that nobody needs who trains a model."""


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def groups() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    return found


def requirements() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def hooks() -> dict[str, str]:
    """Repository of hooks → the version that is asked for."""
    return {each["repo"]: each.get("rev", "") for each in read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]}


@pytest.mark.parametrize(("schema", "path"), [(name, path) for name, paths in SCHEMAS.items() for path in paths])
def test_files_for_the_host_keep_to_its_schema(schema: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = pytest.importorskip("check_jsonschema", reason="pip install --group test")
    words = ["--builtin-schema", f"vendor.{schema}"]
    options = [*words, "--force-filetype", "yaml"] if path.suffix == ".cff" else words
    with pytest.raises(SystemExit) as ended:
        check.main([*options, str(path)])
    assert ended.value.code == 0, capsys.readouterr()


@pytest.mark.parametrize(("name", "command"), [("ci", ".ci/run"), ("night", ".ci/run --night")])
def test_a_hosted_check_runs_what_everybody_runs_on_the_oldest_python_that_is_supported(
    name: str, command: str
) -> None:
    (job,) = read_yaml(GITHUB / f"workflows/{name}.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [command]
    (python,) = {step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")}
    oldest = {tomllib.loads((each / "pyproject.toml").read_text())["project"]["requires-python"] for each in PROJECTS}
    assert oldest == {f">={python}"} == {f">={read_yaml(ROOT / '.readthedocs.yaml')['build']['tools']['python']}"}


def test_hooks_before_a_commit_have_the_versions_of_the_check() -> None:
    wanted = {Requirement(line).name: Requirement(line).specifier for line in groups()["lint"] + groups()["test"]}
    found = {
        repo.rpartition("/")[2].removesuffix("-pre-commit"): rev.removeprefix("v") for repo, rev in hooks().items()
    }
    assert set(found) == {"ruff", "check-jsonschema", "local"}
    assert {name: found[name] for name in found if name in wanted and not wanted[name].contains(found[name])} == {}


def test_the_file_of_hooks_is_one_that_pre_commit_reads() -> None:
    client = pytest.importorskip("pre_commit.clientlib", reason="pip install --group lint")
    assert len(client.load_config(str(ROOT / ".pre-commit-config.yaml"))["repos"]) == len(hooks())


def test_requirements_are_the_distributions_and_the_groups_of_developers() -> None:
    assert sorted(each["include-group"] for each in groups()["dev"]) == sorted(set(groups()) - {"dev"})
    needs = sorted(line for name, lines in groups().items() if name != "dev" for line in lines)
    assert sorted(line for line in requirements() if not line.startswith("-e ") and "==" not in line) == needs
    editable = {ROOT / line.removeprefix("-e ./").partition("[")[0] for line in requirements() if line.startswith("-e")}
    assert editable == {path for path in PROJECTS if not path.is_relative_to(ROOT / "examples")}


def test_updates_are_proposed_for_every_pyproject_and_for_what_the_host_runs() -> None:
    updates = {each["package-ecosystem"]: each for each in read_yaml(GITHUB / "dependabot.yml")["updates"]}
    assert updates.keys() == {"pip", "github-actions", "pre-commit"}
    places = updates["pip"]["directories"]
    assert "/" in places
    assert {path for place in places if place != "/" for path in ROOT.glob(place.strip("/"))} >= PROJECTS


def test_the_citation_names_this_release_and_licence() -> None:
    cited = read_yaml(ROOT / "CITATION.cff")
    project = tomllib.loads((ROOT / "core/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (mt_core.__version__, project["license"])


def test_each_promise_of_security_is_held_by_a_test_that_is_there() -> None:
    page = (GITHUB / "SECURITY.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!promise|---)(.+?) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) >= 8
    for promise, holders in rows:
        tests = re.findall(r"`(tests/\S+\.py)::(\w+)`", holders)
        assert tests, promise
        for file, name in tests:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, f"{file}::{name}"


def test_pages_for_people_have_no_address_that_was_made_up() -> None:
    pages = [*GITHUB.rglob("*.md"), *GITHUB.rglob("*.yml"), ROOT / "CITATION.cff"]
    found = [
        (path.name, each) for path in pages for each in re.findall(r"\S+@\S+\.\S+|\[INSERT.*|TODO", path.read_text())
    ]
    assert [each for each in found if "uses:" not in each[1] and not re.search(r"actions/|@v\d", each[1])] == []


def declared() -> dict[str, list[Requirement]]:
    """What each distribution here declares now, extras as pip writes them; metadata of an editable one may be older."""
    found = {}
    for folder in PROJECTS:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {}).items()
        lines = [f'{line} ; extra == "{extra}"' for extra, needs in extras for line in needs if ";" not in line]
        found[project["name"]] = [Requirement(line) for line in [*project.get("dependencies", []), *lines]]
    return found


def requires(name: str, ours: dict[str, list[Requirement]]) -> list[Requirement]:
    """What a distribution declares; nothing for one that is not installed, being for another system."""
    if name in ours:
        return ours[name]
    try:
        return [Requirement(line) for line in distribution(name).requires or []]
    except PackageNotFoundError:
        return []


def closure(name: str) -> set[str]:
    """What pip installs with a distribution, one through the other; without extras that nobody asks for."""
    ours, found, waiting = declared(), set(), [Requirement(name)]
    while waiting:
        need = waiting.pop()
        asked = (canonicalize_name(need.name), tuple(sorted(need.extras)))
        if asked in found:
            continue
        found.add(asked)
        for each in requires(asked[0], ours):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *need.extras)):
                waiting.append(each)
    return {each for each, _ in found}


@pytest.mark.parametrize(
    "name", ["mt-core", "mt-train", "mt-tools", "mt-plugin-llama", "mt-plugin-qwen", "mt-plugin-glm"]
)
def test_who_trains_a_model_installs_nothing_of_the_developers(name: str) -> None:
    assert closure(name) & DEVELOPERS == set()


def test_a_closure_follows_extras() -> None:
    assert "lm-eval" in closure("mt-plugin-evals[harness]") - closure("mt-plugin-evals")
    assert {"mt-core", "torch", "sympy"} <= closure("mt-plugin-llama"), "through one another"
