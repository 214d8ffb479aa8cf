"""``mt-plugins new`` for every kind: what it writes is linted, typed, built, installed, tested and trained with, untouched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mt_core.cli.plugins import main
from mt_core.kinds import CORE_KINDS
from mt_core.scaffold.distribution import LONGEST
from mt_train.tracking.metrics import MetricsFile

ROOT = Path(__file__).parents[2]
KINDS = {kind.replace("_", "-"): kind for kind in CORE_KINDS.templates}
NAMES = {kind: f"fresh-{number}" for number, kind in enumerate(KINDS)}
NAMES["dataset"] = "q"
NAMES["model"] = "a-name-of-thirty-characters-ab"
SLOTS = {kind: f"--{kind}" for kind in KINDS} | {"callback": "--callbacks"}

Installed = tuple[Path, dict[str, str]]


def run(
    *command: str, environment: dict[str, str] | None = None, folder: Path | None = None, timeout: int = 280
) -> str:
    result = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert result.returncode == 0, f"{result.stdout[-8000:]}\n{result.stderr[-4000:]}"
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new plugin of each kind, whose folder has the name of the kind."""
    base = tmp_path_factory.mktemp("new")
    for kind, name in NAMES.items():
        assert main(["new", kind, name, "--output", str(base / kind)]) == 0
    return base


@pytest.fixture(scope="module")
def installed(written: Path) -> Installed:
    """Return where all of them are installed from their wheels, and the environment in which they are."""
    pip, site = [sys.executable, "-m", "pip", "-q"], written / "site"
    sources = [str(written / kind) for kind in KINDS]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(written / "wheels"), *sources)
    run(
        *pip, "install", "--no-deps", "--no-index", "--target", str(site), *map(str, (written / "wheels").glob("*.whl"))
    )
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return site, {**os.environ, "PYTHONPATH": path}


def test_new_plugins_pass_the_lint_of_this_repository(written: Path) -> None:
    sources = f"src = ['{ROOT}/*/src', '{written}/*/src']"
    settings = ["--config", str(ROOT / "pyproject.toml"), "--config", sources, str(written)]
    for kind in KINDS:  # the longest name without a dash makes the longest lines
        assert main(["new", kind, "l" * LONGEST, "--output", str(written / f"{kind}-longest")]) == 0
    run(sys.executable, "-m", "ruff", "check", "--no-cache", *settings)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "--diff", *settings)


def test_new_plugins_are_typed(written: Path) -> None:
    sources = [str(written / kind / "src") for kind in KINDS]
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join([*map(str, ROOT.glob("*/src")), *sources])}
    assert "no issues found" in run(sys.executable, "-m", "mypy", *settings, *sources, environment=environment)


@pytest.mark.parametrize(
    "launches",
    [
        pytest.param("not mt_launch", id="in one process"),
        pytest.param("mt_launch", id="in many", marks=pytest.mark.soak),
    ],
)
def test_new_plugins_pass_their_own_tests(launches: str, written: Path, installed: Installed) -> None:
    _, environment = installed
    folders = [str(written / kind / "tests") for kind in KINDS]
    words = ["-q", "-m", launches, "--import-mode=importlib", "-p", "no:cacheprovider", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *words, "--rootdir", str(written), *folders]
    said = run(*command, environment=environment, timeout=1200)
    assert " passed" in said
    assert "failed" not in said


def test_two_steps_are_trained_with_all_of_them_by_name(written: Path, installed: Installed) -> None:
    _, environment = installed
    rows = written / "rows.tsv"
    rows.write_text("".join(f"what is {number} times two?\tit is {2 * number}\n" for number in range(64)))
    words = [word for kind, name in NAMES.items() for word in (SLOTS[kind], name)]
    words += ["--dataset.path", str(rows), "--train.steps", "2", "--output", str(written / "run")]
    environment = {**environment, "MT_PLUGINS": ",".join(NAMES.values())}
    said = run(sys.executable, "-m", "mt_train.cli.train", *words, environment=environment)
    assert len(MetricsFile(written / "run" / "metrics.jsonl").read()) == 2
    assert "perplexity" in said
    listed = run(sys.executable, "-m", "mt_core.cli.plugins", "check", "--strict", environment=environment)
    assert listed.count("ok  ") == len(NAMES) + 2, "all of them, what is built in, and mt-train"
    lock = json.loads((written / "run" / "plugins.lock.json").read_text())
    ours = {"mt-core", "mt-train", "mt-plugin-standard"}
    assert lock["sha256"].keys() == {*ours, *(f"mt-plugin-{name}" for name in NAMES.values())}
    assert not {f"mt-plugin-{name}" for name in NAMES.values()} & set(lock["editable"])
