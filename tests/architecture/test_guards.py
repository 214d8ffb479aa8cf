"""Rules of the design that a reader cannot check by eye."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

import mt_core
from mt_core.kinds import CORE_KINDS

sys.path.insert(0, str(Path(__file__).parent))

import sizes

ROOT = Path(__file__).parents[2]
SOURCES = sizes.sources()
CORE = ROOT / "core/src/mt_core"


def test_public_names_are_sorted_complete_and_importable_without_torch() -> None:
    assert sorted(mt_core.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)) == mt_core.__all__
    code = (
        "import sys, mt_core.nn, mt_core.files, mt_core.weights; [getattr(mt_core, n) for n in mt_core.__all__];"
        " assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    with pytest.raises(AttributeError, match="no public name 'nothing'"):
        mt_core.nothing  # noqa: B018


@pytest.mark.parametrize("stub", sorted(ROOT.glob("*/src/**/__init__.pyi")), ids=lambda stub: stub.parent.name)
def test_no_module_of_a_package_is_called_as_one_of_its_public_names(stub: Path) -> None:
    """A name of a stub is imported when it is asked for; a module that was imported before would be there in its place."""
    names = {
        alias.name for node in ast.walk(ast.parse(stub.read_text("utf-8"))) for alias in getattr(node, "names", ())
    }
    assert names, "a stub lists the names"
    assert names & {path.stem for path in stub.parent.iterdir()} == set()


@pytest.mark.parametrize("stub", sorted(ROOT.glob("*/src/**/__init__.pyi")), ids=lambda stub: stub.parent.name)
def test_a_package_lists_its_public_names_for_shells_and_editors(stub: Path) -> None:
    name = ".".join(stub.parent.parts[stub.parts.index("src", len(ROOT.parts)) + 1 :])
    module = importlib.import_module(name)
    assert dir(module) == sorted(module.__all__)


def test_the_core_imports_nothing_around_it_and_keeps_to_its_lines() -> None:
    assert {name.partition(".")[0] for name in sizes.core()} == {"mt_core"}
    lines, allowed = sizes.lines(sizes.core()), sizes.CORE_LINES + sum(sizes.GROWN.values())
    assert lines <= allowed, f"mt_core has {lines:,} lines: move what no plugin needs, or see GROWN in {sizes.__file__}"
    assert sizes.lines(sizes.contract()) <= sizes.CONTRACT_LINES


def test_a_closure_follows_public_names_to_their_modules() -> None:
    found = sizes.closure("mt_plugin_llama.plugin")
    assert {"mt_core.components", "mt_core.hookspecs", "mt_core.nn.rotary"} <= found
    assert not any(name.startswith("mt_train") for name in found)


def test_files_are_short() -> None:
    assert {name: size for name, size in sizes.files().items() if size > sizes.LONGEST_FILE} == {}, "split it"


def test_functions_are_short() -> None:
    found = list(sizes.functions())
    assert median(size for _, size in found) <= sizes.MEDIAN
    assert [(name, size) for name, size in found if size > sizes.LONGEST] == []


def test_docstrings_begin_with_the_thing_or_the_deed() -> None:
    begins = re.compile(r'"""(?:What|Those|That of|Of|Whose) ')
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if begins.match(line.lstrip())
    ]
    assert found == [], "say what it is, or what it does: see CONTRIBUTING.md"


def test_nothing_that_is_loaded_can_execute() -> None:
    forbidden = re.compile(
        r"weights_only\s*=\s*False|(?<![.\w])eval\(|pickle\.loads?\(|trust_remote_code\s*=\s*True|yaml\.unsafe"
    )
    found = [(path.name, match[0]) for path in SOURCES for match in forbidden.finditer(path.read_text())]
    assert found == []


def test_every_hook_is_documented_and_fits_one_page() -> None:
    text = (CORE / "hookspecs.py").read_text()
    assert len(text.splitlines()) <= 120
    tree = ast.parse(text)
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert all(ast.get_docstring(hook) for hook in hooks)
    assert [hook.name for hook in hooks] == [*CORE_KINDS.hooks, "mt_kinds", "mt_doctor"]
