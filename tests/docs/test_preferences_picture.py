"""The picture of docs/preferences.md: small, described, and drawn from runs that anybody can repeat."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from mt_core import Rejected
from mt_plugin_alignment.objectives.shapes import read_preference

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "images/preferences.py"))


def test_the_picture_is_there_small_and_described() -> None:
    [(description, path)] = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", (DOCS / "preferences.md").read_text("utf-8"))
    assert len(description) > 40
    assert 1_000 < (DOCS / path).stat().st_size < 150_000


def test_it_draws_a_line_for_each_figure_of_each_run(script: dict[str, Any], tmp_path: Path) -> None:
    figures = {"logp_chosen": -5.0, "logp_rejected": -9.0, "reward_margin": 0.4}
    lines = [{"step": step, **figures} for step in (1, 2)]
    script["draw"](
        {title: [*lines, {"step": 2, "eval_loss": 0.5}] for title in script["RUNS"]}, tmp_path / "picture.png"
    )
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_its_rows_are_pairs_and_the_same_each_time(script: dict[str, Any]) -> None:
    rows = list(script["rows"](20, 1))
    assert rows == list(script["rows"](20, 1))
    for row in rows:
        found = read_preference({"id": "rows:1", **row})
        assert not isinstance(found, Rejected)
        assert found.prompt[0]["content"] == row["prompt"]
