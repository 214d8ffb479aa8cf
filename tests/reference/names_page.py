"""docs/reference/names.md: every public name with its first sentence, from the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import hooks_page

PAGE = hooks_page.ROOT / "docs" / "reference" / "names.md"

HEAD = """# Public names

<!-- Written by `python tests/reference/write_pages.py` from the docstrings; change those. -->

Plugins and scripts may import these names; everything else is private and may change ([Compatibility](../compatibility.md)).
Names with a link are described with their fields and methods in [hooks, components and protocols](hooks.md).
"""
MODULES = {
    "mt_core": "Imports no torch.",
    "mt_core.nn": "Building blocks of models, adapters and objectives. Taking a name from here imports torch.",
    "mt_core.adapters": "Building blocks of adapters for linear layers. Taking a name from here imports torch.",
    "mt_core.evaluation": "For evaluations: their interface to the model, and their results. Imports no torch.",
    "mt_core.generation": "Requests and results of text generation. Imports no torch.",
    "mt_core.media": "For encoders and projectors: what they read, and how much of a row it takes. Imports no torch.",
    "mt_core.files": "Rows in files, for datasets, and files that a run writes. Imports no torch.",
    "mt_core.weights": "Folders of weights, for families. Imports no torch.",
    "mt_train": "Training from Python. Imports no torch.",
    "mt_train.command": "For commands of plugins. Imports no torch.",
    "mt_train.generation": "For commands of plugins that decode step by step. Taking a name from here imports torch.",
    "mt_tools": "What the commands around training do, from Python. Imports no torch.",
    "mt_tools.report": "Building blocks of HTML pages about runs. Imports no torch.",
    "mt_conformance": "The [conformance kit](../testing_a_plugin.md).",
}


def page() -> str:
    """The page as it should be."""
    titles = set(re.findall(r"^### (\w+)$", hooks_page.page(), re.MULTILINE))
    return "\n".join([HEAD, *("\n".join(_section(name, note, titles)) for name, note in MODULES.items())])


def _section(name: str, note: str, titles: set[str]) -> Iterator[str]:
    module = import_module(name)
    yield f"## {name}\n\n{note}\n\n| name | |\n|---|---|"
    homes = _homes(module.__name__)
    for each in sorted(module.__all__, key=str.lower):
        node, doc = _definition(homes.get(each, name), each)
        said = hooks_page.prose(doc).partition("\n\n")[0].replace("|", "\\|")
        yield f"| {_title(each, node, titles)} | {said} |"
    yield ""


def _homes(name: str) -> dict[str, str]:
    """Public name → the module that defines it, from what the package imports."""
    file = _file(name)
    found = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {alias.asname or alias.name: node.module for alias in node.names}
    return found


def _file(module: str) -> Path:
    top = module.partition(".")[0].removeprefix("mt_")
    path = (hooks_page.ROOT / top / "src").joinpath(*module.split("."))
    packages = (path / "__init__.pyi", path / "__init__.py")
    return next((file for file in packages if file.is_file()), path.with_suffix(".py"))


def _definition(module: str, name: str) -> tuple[ast.AST, str]:
    """What a name is, and its docstring."""
    body = ast.parse(_file(module).read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node, ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in hooks_page.targets(node):
            return node, hooks_page.string(after)
    raise LookupError(f"{module} does not define {name}")


def _title(name: str, node: ast.AST, titles: set[str]) -> str:
    if name in titles:
        return f"[`{name}`](hooks.md#{name.lower()})"
    if isinstance(node, ast.FunctionDef):
        return hooks_page.in_cell(f"{name}({hooks_page.arguments(node)})")
    return f"`{name}`"
