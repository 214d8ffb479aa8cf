"""Python files of the user's, which run because the run names them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from mt_core import UsageError, first_line


def run_file(path: Path, option: str, has: str) -> ModuleType:
    """Run the file as a module of its own, which ``sys.modules`` has while it runs and afterwards: dataclasses look their module up.

    ``has`` says what such a file has in it. Raises ``UsageError``, with the option that names the file, where it is not there, or
    does not run.
    """
    name = f"mt_file_of_user_{uuid4().hex}"  # two options may name the same file, and no module of the user's has this name
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file():
        raise UsageError(f"{option}: {path.absolute()} does not exist; write a file with {has}")
    if spec is None or spec.loader is None:
        raise UsageError(f"{option} {path} is no Python file; its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything; whose it is has to be said
        del sys.modules[name]
        raise UsageError(f"{path} does not run: {type(error).__name__}: {first_line(error)}") from error
    return module


def own_functions(module: ModuleType) -> list[str]:
    """Return the names of what can be called and is written in the file itself, in its order."""
    return [
        name
        for name, each in vars(module).items()
        if getattr(each, "__module__", "") == module.__name__ and callable(each)
    ]
