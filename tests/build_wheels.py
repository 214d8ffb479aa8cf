"""Builds the wheels of many folders in one process: ``python build_wheels.py INTO SOURCE …``.

Each is built by the backend that its ``pyproject.toml`` names, called as pip calls it (PEP 517) without isolation, in a fork of its
own; pip starts Python three times for each. That pip builds what is here show ``integration/test_first_run.py`` and
``alone/test_wheels.py``; the latter also a new plugin, from its folder.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path


def build_wheels(into: Path, *sources: Path) -> None:
    """Build the wheel of each source into the folder, and raise ``AssertionError`` with what was printed where one fails."""
    command = [sys.executable, __file__, str(into), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"


def build(into: Path, source: Path) -> None:
    """Build one wheel, in the folder of its source."""
    system = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["build-system"]
    os.chdir(source)
    importlib.import_module(system["build-backend"]).build_wheel(str(into))


def main(into: Path, sources: list[Path]) -> None:
    into.mkdir(parents=True, exist_ok=True)
    importlib.import_module("setuptools.build_meta")  # once, and not in each fork
    vendored = str(Path(str(sys.modules["setuptools"].__file__)).parent / "_vendor")
    if (
        vendored not in sys.path
    ):  # its import adds this, which a forked start does not see where the server had it before
        sys.path.append(vendored)
    for source in sources:
        if (child := os.fork()) == 0:
            build(into, source)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"the wheel of {source} was not built")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), [Path(each).absolute() for each in sys.argv[2:]])
