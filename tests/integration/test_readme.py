"""What README.md says beside its commands, which test_docs.py runs. Its first two run in test_first_run.py, and in .ci/run."""

from __future__ import annotations

import html
import re
import runpy
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from mt_train.cli.train import main as mt_train

ROOT = Path(__file__).parents[2]
README, CONTRIBUTING = ((ROOT / f"{name}.md").read_text(encoding="utf-8") for name in ("README", "CONTRIBUTING"))


def test_the_config_file_of_the_readme_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert example is not None
    (tmp_path / "run.yaml").write_text(example[1])
    monkeypatch.chdir(tmp_path)
    assert mt_train(["--config", "run.yaml", "--train.steps", "100", "--print-config"]) == 0
    assert "# command line" in capsys.readouterr().out


def test_the_tree_has_every_package_and_nothing_that_is_not_there() -> None:
    tree = CONTRIBUTING.partition("## The sources, in reading order")[2].partition("```text\n")[2].partition("```")[0]
    place, listed = ROOT, set()
    for line in tree.splitlines():
        name = line.split("  ", 1)[0] or line.split()[0]
        if line.startswith("  "):
            listed.add(place / name.rstrip("/"))
        else:
            place = ROOT / name.rstrip("/")
            listed.add(place)
    assert [str(path) for path in sorted(listed) if not path.exists()] == []
    places = [ROOT / f"{name}/src/mt_{name}" for name in ("core", "train", "tools")]
    packages = {path.parent for place in places for path in place.glob("*/__init__.py")}
    assert packages - listed == set()
    folders = {path.parent for path in ROOT.glob("*/pyproject.toml")} | {
        ROOT / name for name in ("plugins", "tests", "docs")
    }
    assert {path for path in folders if not any(each.is_relative_to(path) for each in listed)} == set()


def test_the_table_has_each_plugin_of_the_repository_with_its_own_summary() -> None:
    rows = re.findall(r"^\| \[`(.+?)`\]\((.+?)/README\.md\) \| (.+) \| `pip install (.+)` \|$", README, re.MULTILINE)
    expected = []
    for path in ROOT.glob("plugins/*/pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        summary = project["description"].replace(" for mt-core", "")
        expected.append((project["name"], str(path.parent.relative_to(ROOT)), summary, project["name"]))
    assert sorted(rows) == sorted(expected)


def test_the_counts_of_adapters_are_those_of_the_releases_that_the_table_names() -> None:
    from peft.utils.peft_types import PeftType

    from mt_plugin_adapters import plugin as adapters
    from mt_plugin_standard import plugin as standard

    ours, peers = re.findall(r"^\| adapters \| (\d+) \| (\d+) methods of PEFT \|", README, re.MULTILINE)[0]
    low_rank = {each.name for each in (*adapters.mt_adapters(), *standard.mt_adapters())} - {"full"}
    assert (int(ours), int(peers)) == (len(low_rank), len(PeftType))
    assert f"peft {version('peft').rpartition('.')[0]}" in README


def test_the_readme_is_short() -> None:
    """Without the table of plugins, which has a line for each distribution."""
    lines = [line for line in README.splitlines() if not line.startswith("| [`mt-plugin-")]
    assert len(lines) <= 95


def test_the_pictures_are_there_small_and_described() -> None:
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", README)
    assert len(pictures) == 2
    for description, path in pictures:
        assert len(description) > 40
        assert 1_000 < (ROOT / path).stat().st_size < 150_000


def test_the_picture_of_the_terminal_shows_its_command_and_loads_nothing() -> None:
    script = runpy.run_path(str(ROOT / "docs/images/terminal.py"))
    kept = (ROOT / "docs/images/terminal.svg").read_text(encoding="utf-8")
    for svg in (kept, script["draw"]("step 1/1 | loss 2.0\n")):
        assert set(re.findall(r"\w+://[^\s\"')]+", svg)) <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}
        assert "@font-face" not in svg
        assert script["COMMAND"] in html.unescape(svg).replace("\xa0", " ")
