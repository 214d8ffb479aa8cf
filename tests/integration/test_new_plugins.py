"""``mt-plugins new`` for every kind: what it writes is linted, typed, built, installed, tested and trained with, untouched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from build_wheels import build_wheels

from mt_core.cli.plugins import main
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection
from mt_core.scaffold.distribution import LONGEST
from mt_train.tracking.metrics import MetricsFile

ROOT = Path(__file__).parents[2]
FOUND = PluginHost.discover(Selection())
KINDS = {kind.replace("_", "-"): kind for kind in FOUND.kinds.templates}
BRINGERS = {distribution for distribution, _ in FOUND.bringers.values()}
NAMES = {kind: f"fresh-{number}" for number, kind in enumerate(KINDS)}
NAMES["dataset"] = "q"
NAMES["model"] = "a-name-of-thirty-characters-ab"
SLOTS = {
    kind: f"--{key.replace('_', '-')}"
    for kind, name in KINDS.items()
    for key in [FOUND.kinds.keys_of_kinds.get(name)]
    if key and name not in ("reward", "sampler")
}
"""Kinds that any run names, and how; a metric is a part, rewards and samplers are for objectives that learn from answers."""

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
def plugins_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new plugin of each kind, whose folder has the name of the kind."""
    base = tmp_path_factory.mktemp("new")
    for kind, name in NAMES.items():
        assert main(["new", kind, name, "--output", str(base / kind)]) == 0
    return base


@pytest.fixture(scope="module")
def installation(plugins_folder: Path) -> Installed:
    """Return where all of them are installed from their wheels, and the environment in which they are."""
    site, wheels = plugins_folder / "site", plugins_folder / "wheels"
    build_wheels(wheels, *(plugins_folder / kind for kind in KINDS))
    install = [sys.executable, "-m", "pip", "-q", "install", "--no-deps", "--no-index", "--target", str(site)]
    run(*install, *map(str, wheels.glob("*.whl")))
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return site, {**os.environ, "PYTHONPATH": path}


def questions(folder: Path) -> Path:
    path = folder / "questions.jsonl"
    rows = [{"question": f"Is {number} times two {2 * number}?", "answer": True} for number in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"question": "Is 1 2?", "answer": False}]))
    return path


def test_new_plugins_pass_the_lint_of_this_repository(plugins_folder: Path) -> None:
    sources = f"src = ['{ROOT}/*/src', '{plugins_folder}/*/src']"
    settings = ["--config", str(ROOT / "pyproject.toml"), "--config", sources, str(plugins_folder)]
    for kind in KINDS:  # the longest name without a dash makes the longest lines
        assert main(["new", kind, "l" * LONGEST, "--output", str(plugins_folder / f"{kind}-longest")]) == 0
    run(sys.executable, "-m", "ruff", "check", "--no-cache", *settings)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "--diff", *settings)


def test_new_plugins_are_typed(plugins_folder: Path) -> None:
    sources = [str(plugins_folder / kind / "src") for kind in KINDS]
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
def test_new_plugins_pass_their_own_tests(launches: str, plugins_folder: Path, installation: Installed) -> None:
    _, environment = installation
    folders = [str(plugins_folder / kind / "tests") for kind in KINDS]
    words = ["-q", "-m", launches, "--import-mode=importlib", "-p", "no:cacheprovider", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *words, "--rootdir", str(plugins_folder), *folders]
    said = run(*command, environment=environment, timeout=1200)
    assert " passed" in said
    assert "failed" not in said


def test_two_steps_are_trained_with_all_of_them_by_name(plugins_folder: Path, installation: Installed) -> None:
    _, environment = installation
    rows = plugins_folder / "rows.tsv"
    rows.write_text("".join(f"what is {number} times two?\tit is {2 * number}\n" for number in range(64)))
    words = [word for kind in SLOTS for word in (SLOTS[kind], NAMES[kind])]
    words += [f"--evaluations.{NAMES['evaluation']}.path", str(questions(plugins_folder))]
    words += [f"--encoders.{NAMES['encoder']}.projector", NAMES["projector"]]
    words += ["--dataset.path", str(rows), "--train.steps", "2", "--output", str(plugins_folder / "run")]
    environment = {**environment, "MT_PLUGINS": ",".join([*NAMES.values(), *BRINGERS])}
    said = run(sys.executable, "-m", "mt_train.cli.train", *words, environment=environment)
    records = MetricsFile(plugins_folder / "run" / "metrics.jsonl").read()
    assert [f"eval_{NAMES['evaluation'].replace('-', '_')}_accuracy" in record for record in records] == [False, True]
    assert "perplexity" in said
    listed = run(sys.executable, "-m", "mt_core.cli.plugins", "check", "--strict", environment=environment)
    assert listed.count("ok  ") == len(NAMES) + len({"mt-plugin-standard", *BRINGERS}), (
        "all of them, and what is built in"
    )
    lock = json.loads((plugins_folder / "run" / "plugins.lock.json").read_text())
    ours = {"mt-core", "mt-train", "mt-plugin-standard"}
    assert lock["sha256"].keys() == {*ours, *(f"mt-plugin-{NAMES[kind]}" for kind in [*SLOTS, "projector"])}
    assert not {f"mt-plugin-{name}" for name in NAMES.values()} & set(lock["editable"])


def test_a_new_reward_is_learned_from_with_answers_of_a_new_sampler(
    plugins_folder: Path, installation: Installed
) -> None:
    _, environment = installation
    rows, out = plugins_folder / "prompts.tsv", plugins_folder / "learned"
    rows.write_text("".join(f"what is {number}?\tit is {number}\n" for number in range(4)))
    words = [
        "--model",
        NAMES["model"],
        "--dataset",
        NAMES["dataset"],
        "--dataset.path",
        str(rows),
        "--objective",
        "grpo",
    ]
    words += ["--rewards", NAMES["reward"], "--objective.prompts", "2", "--objective.group", "2", "--data.eval", "none"]
    words += ["--objective.max-new-tokens", "4", "--train.steps", "1", "--output", str(out)]
    words += ["--sampler", NAMES["sampler"]]
    environment = {**environment, "MT_PLUGINS": ",".join([*NAMES.values(), *BRINGERS])}
    run(sys.executable, "-m", "mt_train.cli.train", *words, environment=environment)
    (record,) = MetricsFile(out / "metrics.jsonl").read()
    assert f"reward_{NAMES['reward'].replace('-', '_')}" in record
    lock = json.loads((out / "plugins.lock.json").read_text())
    assert {f"mt-plugin-{NAMES[kind]}" for kind in ("reward", "sampler")} <= lock["sha256"].keys()


def test_a_new_evaluation_is_asked_on_two_ranks_at_zero_3_and_of_the_checkpoint(
    plugins_folder: Path, installation: Installed
) -> None:
    _, environment = installation
    (source,) = (plugins_folder / "evaluation" / "src").rglob("evaluation.py")
    assert len(source.read_text().splitlines()) <= 40, "what a stranger has to write"
    name, folder = NAMES["evaluation"], plugins_folder / "two"
    asked = ["--evaluations", name, f"--evaluations.{name}.path", str(questions(plugins_folder))]
    words = [*asked, "--model", "llama", "--train.steps", "2", "--train.sequence-len", "32", "--eval.every-steps", "1"]
    words += ["--nproc-per-node", "2", "--parallel.zero-stage", "3", "--output", str(folder)]
    run(sys.executable, "-m", "mt_train.cli.train", *words, environment=environment)
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["step"], line["evaluation"], line["requests"]) for line in lines] == [(1, name, 12), (2, name, 12)]
    figure = f"eval_{name.replace('-', '_')}_accuracy"
    recorded = [record[figure] for record in MetricsFile(folder / "metrics.jsonl").read()]
    assert recorded == [line["figures"]["accuracy"] for line in lines]
    words = ["--run", str(folder), *asked, "--output", str(plugins_folder / "evaluated"), "--predictions"]
    run(sys.executable, "-m", "mt_tools.cli.eval", *words, environment=environment)
    (found,) = json.loads((plugins_folder / "evaluated" / "metrics.json").read_text())["results"]
    assert found["figures"]["accuracy"] == recorded[-1]
    counted = run(sys.executable, "-m", "mt_tools.cli.eval", *words, "--dry-run", environment=environment)
    assert f"{name}: 12 scores asked of the model" in counted
