"""Pages that are written from the code say what the code says; those for authors leave no kind out."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import commands_page
import hooks_page
import kind_pages
import names_page
from write_pages import PAGES

from mt_core.events import EVENTS
from mt_core.kinds import CORE_KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = {kind.replace("_", "-"): kind for kind in kind_pages.FOUND.kinds.templates}
HOW = "run python tests/reference/write_pages.py"
LAID_OUT_BY = (3, 11)
"""Python whose argparse lays out the pages of commands; later ones put other line breaks."""
GIVEN = {"name", "summary"}
"""Fields of a component that say themselves what they are."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_what_the_code_says(page: Path) -> None:
    if page == commands_page.PAGE and sys.version_info[:2] != LAID_OUT_BY:
        pytest.skip("argparse of this Python has other line breaks")
    wanted, found = PAGES[page]().splitlines(), page.read_text(encoding="utf-8").splitlines()
    differ = [line for line in wanted if line not in found] + [line for line in found if line not in wanted]
    assert found == wanted, f"{HOW}; first difference: {differ[:1]}"


def test_every_kind_has_a_page_with_what_a_new_plugin_of_it_is() -> None:
    kinds = {*CORE_KINDS.slots, *CORE_KINDS.lists.values(), *kind_pages.FOUND.bringers}
    assert {path.stem for path in (DOCS / "write").glob("*.md")} == kinds
    for kind, own in KINDS.items():
        page = (DOCS / "write" / f"{own}.md").read_text(encoding="utf-8")
        assert f"\nmt-plugins new {kind} " in page
        assert kind_pages.BLOCK.search(page), f"{own}.md shows no file of a new {kind}"


def test_every_page_of_a_kind_answers_the_same_questions() -> None:
    wanted = ["What is called when", "What to declare", "State and resume", "Common mistakes", "Tested by"]
    for path in (DOCS / "write").glob("*.md"):
        titles = re.findall(r"^## (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert [title for title in titles if title in wanted] == wanted, path.name


def test_every_field_of_a_component_is_explained() -> None:
    for node in ast.parse((hooks_page.CORE / "components.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            doc = ast.get_docstring(node) or ""
            fields = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)} - GIVEN
            assert sorted(field for field in fields if f"``{field}" not in doc) == [], node.name


def test_every_public_name_says_what_it_is() -> None:
    rows = re.findall(r"^\| (.*) \| (.*) \|$", names_page.page(), re.MULTILINE)
    assert len(rows) > 150
    assert [name for name, said in rows if not said] == []


def test_every_command_that_is_installed_is_on_the_page_of_commands() -> None:
    files = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    scripts = {name for file in files for name in tomllib.loads(file.read_text())["project"].get("scripts", {})}
    titles = re.findall(r"^## (.*)$", commands_page.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(titles) == scripts


def test_terms_of_the_glossary_are_sorted_each_once_and_short() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^## (.*)\n\n(.*)$", text, re.MULTILINE))
    terms = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert terms == sorted(set(terms), key=str.lower)
    assert entries.keys() == set(terms), "a term has one paragraph"
    assert all("](" in entry and len(entry) < 300 for entry in entries.values())


def test_the_glossary_names_every_kind() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    entry = re.search(r"^## Kind\n\n(.*)$", text, re.MULTILINE)
    assert entry is not None
    kinds = {kind.replace("_", " ") for kind in (*CORE_KINDS.slots, *CORE_KINDS.lists.values())}
    assert kinds - set(re.split(r"[:,] ", entry[1])) == set()


def test_the_page_of_the_trainer_has_each_event_and_each_request_of_its_callbacks() -> None:
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("transformers is not here")
    source = (Path(found.origin).parent / "trainer_callback.py").read_text(encoding="utf-8")
    classes = {node.name: node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    events = [each.name for each in classes["TrainerCallback"] if isinstance(each, ast.FunctionDef)]
    flags = [str(each.target.id) for each in classes["TrainerControl"] if isinstance(each, ast.AnnAssign)]  # type: ignore[union-attr]
    page = (DOCS / "from-trainer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(on_\w+|should_\w+)` \| (.*?) \|", page, re.MULTILINE)
    assert {name for name, _ in rows} == {*flags, *(name for name in events if name.startswith("on_"))}
    ours = {here.strip("`") for name, here in rows if name.startswith("on_")} - {"none"}
    assert ours <= set(EVENTS)
