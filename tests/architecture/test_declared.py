"""What a distribution imports it declares, and what it declares it imports: nobody's wheel leans on what another one brought."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from mt_core.cli.plugins import main
from mt_core.kinds import CORE_KINDS

ROOT = Path(__file__).parents[2]
KINDS = {kind.replace("_", "-"): kind for kind in CORE_KINDS.templates}
FOLDERS = [
    *sorted(path.parent for path in ROOT.glob("*/pyproject.toml")),
    *sorted(path.parent for part in ("plugins", "examples") for path in ROOT.glob(f"{part}/*/pyproject.toml")),
]
FROM = {
    "bitsandbytes": "bitsandbytes",
    "jieba": "jieba",
    "liger_kernel": "liger-kernel",
    "mlflow": "mlflow-skinny",
    "pydantic_core": "pydantic",
    "pynvml": "nvidia-ml-py",
    "rouge_chinese": "rouge-chinese",
    "torchao": "torchao",
    "wandb": "wandb",
    "zstandard": "zstandard",
}
"""Modules of optional packages, which need not be installed here, and one whose version pydantic pins to its own."""

NAMED_BY = ("import_module", "package")
"""Functions that import what their first argument names; the second is that of the trackers and evaluations."""

ELSEWHERE = ROOT / "tools/src/mt_tools/convert/readers"
"""Programs that run where another reader of exported folders is installed, and in no environment of ours."""

WITHOUT_AN_IMPORT = {
    "mt-plugin-alignment": "the kind of samplers; found as any plugin is",
    "mt-plugin-datasets": "rows of the sets that evaluations ask about; found as any plugin is",
    "mt-plugin-multimodal": "the projector that an encoder's features go through; found as any plugin is",
    "mt-plugin-standard": "what a run takes where it names nothing; found as any plugin is",
    "mt-tools": "the commands come with a model",
    "mt-train": "an extra, for whoever has no model yet",
    "pytest": "runs the tests",
    "protobuf": "what a SentencePiece model is written in: transformers reads one with it",
    "chardet": "the newest breaks a package that lm_eval needs",
    "typepy": "the newest breaks a package that lm_eval needs",
    "gcsfs": "fsspec reads gs:// with it",
    "s3fs": "fsspec reads s3:// with it",
    "tensorboard": "torch.utils.tensorboard writes with it",
    "zstandard": "the core reads the .zst files of every dataset with it",
}
"""Declared, and needed by something else that is imported; with the reason."""


def test_the_scan_sees_lazy_and_named_imports(tmp_path: Path) -> None:
    package = tmp_path / "src/package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import other\nimport json\ndef f():\n    import scipy.sparse as s\n")
    (package / "other.py").write_text("import importlib\nm = importlib.import_module('numba.core')\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "package"\ndependencies = ["rich>=13"]\n')
    assert undeclared_imports(tmp_path) == ["__init__.py:4 imports scipy", "other.py:2 imports numba"]
    assert not_imported(tmp_path) == ["rich"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_distribution_declares_what_it_imports_and_nothing_else(folder: Path) -> None:
    assert undeclared_imports(folder) == []
    assert not_imported(folder) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_generated_plugin_declares_what_it_imports_and_nothing_else(kind: str, tmp_path: Path) -> None:
    assert main(["new", kind, "declared", "--output", str(tmp_path / "new")]) == 0
    assert undeclared_imports(tmp_path / "new") == []
    assert not_imported(tmp_path / "new") == []


def undeclared_imports(folder: Path) -> list[str]:
    """Imports of what is neither Python's, its own, nor of a distribution that is declared, an extra's included."""
    known = declared_names(folder) | {path.name for path in (folder / "src").iterdir()} | sys.stdlib_module_names
    return [
        f"{path.name}:{line} imports {module}"
        for path in sources(folder)
        for line, module in imports(path)
        if module not in known and not distributions_of(module) & known
    ]


def not_imported(folder: Path) -> list[str]:
    """Distributions that are declared and imported nowhere, tests included, nor have a reason."""
    seen = {
        name for path in sources(folder, "tests") for _, module in imports(path) for name in distributions_of(module)
    }
    return sorted(declared_names(folder) - seen - WITHOUT_AN_IMPORT.keys())


def sources(folder: Path, *parts: str) -> list[Path]:
    found = (path for part in ("src", *parts) for path in (folder / part).rglob("*.py"))
    return sorted(path for path in found if path.parent != ELSEWHERE)


def declared_names(folder: Path) -> set[str]:
    """Names of the dependencies and of those of every extra."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    return {canonicalize(line) for lines in (project["dependencies"], *extras) for line in lines}


def canonicalize(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level module of every import, wherever it stands; also of those by a name in quotes."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for name in names_in(node):
            yield node.lineno, name.partition(".")[0]  # type: ignore[attr-defined]


def names_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(level=0, module=str(name)):
            return [name]
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
            return [name] if called in NAMED_BY else []
    return []


@cache
def modules_by_distribution() -> dict[str, set[str]]:
    return {module: set(map(canonicalize, names)) for module, names in packages_distributions().items()}


def distributions_of(module: str) -> set[str]:
    """Of ours by their names, which hold also where their editable installs are not seen."""
    ours = {canonicalize(module)} if module.startswith("mt_") else set()
    return ours or ({FROM[module]} if module in FROM else modules_by_distribution().get(module, set()))
