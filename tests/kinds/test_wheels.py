"""Three wheels: one brings a kind, one offers a component of it, one uses it; a run names it, is resumed, locked, and refused without.

No line of the core or of mt-train knows of any of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from build_wheels import build_wheels

HERE = Path(__file__).parent / "distributions"
ROWS = ["short", "a text that is long enough", "tiny", "a text of middling length", "brief", "mini", "one more"]
SOURCE = {"name": "jsonl", "path": "rows.jsonl"}
TINY = ["--model", "llama", "--train.steps", "2", "--train.sequence-len", "16", "--data.eval", "none"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installation of each."""
    base = tmp_path_factory.mktemp("kinds")
    sources = [shutil.copytree(path, base / "sources" / path.name) for path in sorted(HERE.iterdir())]
    build_wheels(base / "wheels", *sources)
    for wheel in (base / "wheels").glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(base / wheel.name.partition("-")[0])
    return base


def say(wheels: Path, *names: str, command: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command where these distributions are installed."""
    path = os.pathsep.join(str(wheels / f"acme_{name}") for name in names)
    line = [sys.executable, "-m", command, *words]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ROWS))
    config = {"dataset": {"name": "filtered", "source": SOURCE, "keep": {"name": "short", "most": 10}}}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return folder


ALL = ("filters", "short", "filtered")
OF_THE_RUN = ["--row-filters", "short", "--row-filters.short.most", "6"]


@pytest.fixture(scope="module")
def run(wheels: Path, folder: Path) -> Path:
    """A run that names a filter twice: in its dataset, and for itself."""
    words = ["--config", "run.yaml", *TINY, *OF_THE_RUN, "--output", "run"]
    done = say(wheels, *ALL, command="mt_train.cli.train", words=words, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_a_run_names_a_component_of_a_kind_that_the_core_does_not_know(run: Path) -> None:
    written = yaml.safe_load((run / "run.yaml").read_text())
    assert written["row_filters"] == [{"name": "short", "most": 6}]
    kept = [text for text in ROWS if len(text) <= 6]
    about = json.loads((run / "about.json").read_text())
    assert about["data"]["train"]["rows_read"] == len(kept) == 4, "the dataset's own filter alone keeps 5"


def test_the_lock_names_who_brings_the_kind_who_offers_and_who_uses_it(run: Path) -> None:
    lock = json.loads((run / "plugins.lock.json").read_text())
    assert {"acme-filters", "acme-short", "acme-filtered"} <= lock["plugins"].keys()
    assert {"acme-filters", "acme-short", "acme-filtered"} <= lock["sha256"].keys()


def test_it_is_resumed_and_a_changed_option_of_the_kind_is_refused(run: Path, wheels: Path, folder: Path) -> None:
    longer = ["--resume", "run", "--train.steps", "3"]
    other = say(
        wheels,
        *ALL,
        command="mt_train.cli.train",
        words=[*longer, "--row-filters.short.most", "9"],
        folder=folder,
    )
    assert other.returncode == 2
    assert "row-filters: is [{'name': 'short', 'most': 9}]" in " ".join(other.stderr.split())
    done = say(wheels, *ALL, command="mt_train.cli.train", words=longer, folder=folder)
    assert done.returncode == 0, done.stderr
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("missing", ALL)
def test_a_run_is_refused_by_name_where_one_of_them_is_missing(
    missing: str, run: Path, wheels: Path, folder: Path
) -> None:
    there = [name for name in ALL if name != missing]
    resumed = say(
        wheels, *there, command="mt_train.cli.train", words=["--resume", "run", "--train.steps", "9"], folder=folder
    )
    assert resumed.returncode == 1
    assert f"used acme-{missing}, not installed here: pip install acme-{missing}==1.0" in resumed.stderr
    words = ["--config", "run.yaml", *TINY, *OF_THE_RUN, "--print-config"]
    fresh = say(wheels, *there, command="mt_train.cli.train", words=words, folder=folder)
    assert fresh.returncode == 2
    needed = {"filters": "acme-filters", "short": "row filter named 'short'", "filtered": "dataset named 'filtered'"}
    assert needed[missing] in " ".join(fresh.stderr.split())
    assert "Traceback" not in fresh.stderr


def test_what_an_absent_kind_leaves_out_stops_no_run_that_does_not_need_it(wheels: Path, folder: Path) -> None:
    words = [*TINY, "--schedule", "steady", "--print-config"]
    done = say(wheels, "short", command="mt_train.cli.train", words=words, folder=folder)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "what it offers through mt_row_filters is left out" in said
    assert "It depends on acme-filters, which is not installed, blocked or failed" in said


def test_the_kind_and_its_components_are_listed(wheels: Path, folder: Path) -> None:
    listed = say(wheels, *ALL, command="mt_core.cli.plugins", words=["list", "--components"], folder=folder).stdout
    (line,) = [line for line in listed.splitlines() if line.startswith("row filter")]
    assert "short" in line
    assert "acme-short" in line
    about = say(wheels, *ALL, command="mt_core.cli.plugins", words=["info", "acme-filters"], folder=folder).stdout
    assert "kind: row filter (mt_row_filters, --row-filters): decides which rows are kept" in about
    about = say(wheels, *ALL, command="mt_core.cli.plugins", words=["info", "acme-short"], folder=folder).stdout
    assert "--row-filters.short.most" in about
    words = ["--model", "llama", *OF_THE_RUN, "--help"]
    page = say(wheels, *ALL, command="mt_train.cli.train", words=words, folder=folder).stdout
    assert "--row-filters NAME,NAME (installed: short" in page
    assert "--row-filters.short.most" in page


def test_what_a_run_names_and_nothing_takes_is_refused(wheels: Path, folder: Path) -> None:
    words = [*TINY, "--row-filters", "short", "--print-config"]
    done = say(wheels, *ALL, command="mt_train.cli.train", words=words, folder=folder)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert (
        "row-filters: is named, and no component of this run takes it. Choose one that does: --dataset filtered" in said
    )
