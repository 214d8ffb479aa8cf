"""Public names of a package that are imported when somebody asks for them.

The package's stub, ``__init__.pyi``, is the one list of them: type checkers and editors read it, and so does this
(https://scientific-python.org/specs/spec-0001).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def public_names(file: str) -> dict[str, str]:
    """Name → the module that defines it, for the package whose ``__init__.py`` is ``file``; sorted as ruff sorts ``__all__``."""
    import ast  # commands that ask for no name do without it

    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    found = {alias.name: str(node.module) for node in imports for alias in node.names}
    return {name: found[name] for name in sorted(found, key=lambda name: (not name.isupper(), name[0].islower(), name))}


def importer(
    package: str, file: str, current: Callable[[str, str], str] = lambda package, name: name
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package with this ``__init__.py``, which gets a ``__dir__`` too; ``current(package, name)`` is the name that
    an old one stands for."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - what Python calls it
        names = public_names(file)
        if name == "__all__":
            return list(names)
        name = current(package, name)
        if name not in names:
            raise AttributeError(f"module {package!r} has no public name {name!r}; it has {', '.join(sorted(names))}")
        value = getattr(import_module(names[name]), name)
        vars(sys.modules[package])[name] = value  # under the new name only: an old one warns each time
        return value

    vars(sys.modules[package])["__dir__"] = lambda: sorted(public_names(file))
    return __getattr__
