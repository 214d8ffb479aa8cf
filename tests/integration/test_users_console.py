"""A whole run as it is given on a console that knows ASCII only, with secrets around it: every word and file that it leaves behind."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
import os
from mt_core import Component, hookimpl

class Unreachable:
    def log(self, record):
        raise OSError("no answer from {SERVICE_URL} with {SERVICE_API_KEY}".format_map(os.environ))

    def close(self, *, failed):
        pass

@hookimpl
def mt_trackers():
    return [Component(name="service", build=lambda config, *, run: Unreachable(), summary="a service that does not answer")]
"""

HUB, KEY, PASSWORD, SIGNATURE = "hf_" + "Ab1" * 12, "k3yOfAService77", "pa55wordOfAUser", "51gnatureOfALink"
ADDRESS = f"https://somebody:{PASSWORD}@service.example/api?sig={SIGNATURE}"
HOME = {"train": "mt_train"} | dict.fromkeys(("report", "eval", "generate"), "mt_tools")
SECRETS = [HUB, KEY, PASSWORD, SIGNATURE]
OPTIONS = ["--model", "kit-tiny", "--dataset", "jsonl", "--dataset.path", "rows.jsonl", "--objective", "pretrain"]
OPTIONS += ["--data.eval", "4", "--eval.every-steps", "2", "--eval.samples", "2", "--train.sequence-len", "32"]
OPTIONS += ["--train.micro-batch-size", "2", "--callbacks", "predictions", "--trackers", "csv,service"]
OPTIONS += ["--log.every-steps", "1"]


class User:
    """Somebody in a folder of their own."""

    def __init__(self, folder: Path, *sites: Path) -> None:
        self.folder, self.said = folder, b""
        console = {
            "PYTHONIOENCODING": "ascii",
            "PYTHONUTF8": "0",
            "LC_ALL": "C",
            "HF_TOKEN": HUB,
            "SERVICE_API_KEY": KEY,
            "SERVICE_URL": ADDRESS,
        }
        paths = filter(None, [*map(str, sites), os.environ.get("PYTHONPATH")])
        self._environment = {**os.environ, **console, "PYTHONPATH": os.pathsep.join(paths)}

    def run(self, command: str, *words: str) -> str:
        line = [sys.executable, "-m", f"{HOME[command]}.cli.{command}", *words]
        done = subprocess.run(
            line, cwd=self.folder, env=self._environment, capture_output=True, timeout=1500, check=False
        )
        self.said += done.stdout + done.stderr
        assert done.returncode == 0, done.stderr.decode("ascii")
        return (done.stdout + done.stderr).decode("ascii")

    def steps(self) -> list[str]:
        with (self.folder / "run/metrics.csv").open(newline="") as file:
            return [row["step"] for row in csv.DictReader(file)]

    def predictions(self) -> list[int]:
        lines = (self.folder / "run/predictions.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line)["step"] for line in lines]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory, kit_folder: Path) -> User:
    folder = tmp_path_factory.mktemp("user")
    site = folder / "site"
    (site / "acme_service-1.0.dist-info").mkdir(parents=True)
    (site / "acme_service.py").write_text(PLUGIN)
    (site / "acme_service-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-service\nVersion: 1.0\n"
    )
    (site / "acme_service-1.0.dist-info/entry_points.txt").write_text("[mt_core.plugins]\nacme = acme_service\n")
    home = folder / "heim \u00fc"
    home.mkdir()
    rows = [{"text": f"\u00dcbung {number}: \u7e41\u9ad4 \U0001f642 \x1b[31mred"} for number in range(40)]
    (home / "rows.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")
    return User(home, site, kit_folder)


def test_a_run_goes_on_over_its_own_files_and_begins_anew_when_told_to(user: User) -> None:
    said = user.run("train", *OPTIONS, "--train.steps", "2", "--output", "run", "--resume", "auto")
    assert "tracker service failed (log): OSError: no answer from https://" in said
    assert (user.steps(), user.predictions()) == (["1", "2"], [2, 2])
    user.run("train", *OPTIONS, "--train.steps", "4", "--output", "run", "--resume", "auto")
    assert (user.steps(), user.predictions()) == (["1", "2", "3", "4"], [2, 2, 4, 4])
    user.run("train", *OPTIONS, "--train.steps", "2", "--output", "run", "--overwrite")
    assert (user.steps(), user.predictions()) == (["1", "2"], [2, 2])


def test_nothing_that_it_leaves_behind_has_a_secret_or_moves_the_cursor(user: User) -> None:
    user.run("report", "run", "--output", "page.html")
    user.run("eval", "--run", "run")
    user.run("generate", "--run", "run", "--prompt", "\\u00dc", "--greedy")
    left = {path: path.read_bytes() for path in user.folder.rglob("*") if path.is_file() and path.name != "rows.jsonl"}
    assert {path.name for path in left} >= {"run.yaml", "about.json", "metrics.csv", "predictions.jsonl", "page.html"}
    for secret in SECRETS:
        assert secret.encode() not in user.said
        assert [path.name for path, content in left.items() if secret.encode() in content] == []
    assert b"\x1b" not in user.said
    assert user.said.isascii()
