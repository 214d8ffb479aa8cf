"""Environments with the core and one plugin of ours, from wheels, on top of the packages of others that are installed here.

With it come the plugins that it declares."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("mt_", "__editable__.mt_", "__editable___mt_")
"""How everything begins that an installation of ours leaves in a folder of packages."""
BESIDE = ("core", "train", "tools", "conformance", "plugins/standard")
"""Beside which every plugin is tested."""
PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")


def output_of(*command: str | Path, cwd: Path | None = None, timeout: int, **variables: str) -> str:
    """What a command printed, without what this process has on its path. Raises ``AssertionError`` with all of it when it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        list(map(str, command)), env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def wheel(source: Path, folder: Path) -> Path:
    """Built from a copy: in place, setuptools would pack what an earlier build left behind."""
    left = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    copy = shutil.copytree(source, folder / "sources" / source.name, ignore=left)
    made = folder / "wheels" / source.name
    output_of(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", made, copy, timeout=600)
    return next(made.glob("*.whl"))


def link_packages(into: Path) -> None:
    """All packages that are installed here, but for ours; no ``.pth`` file, where editable ones would come from.

    Links stand in the environment itself: dill, with which datasets hashes, takes what is outside of it for the user's own code.
    """
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if not path.name.startswith((*OURS, "__pycache__")) and path.suffix != ".pth":
                (into / path.name).symlink_to(path)
        share_bytecode(Path(place), into)


def share_bytecode(place: Path, links: Path) -> None:
    """Where bytecode is kept apart, by paths, what is linked has that of what it links to: compiling all of torch takes long."""
    if sys.pycache_prefix is None:
        return
    kept, used = (Path(sys.pycache_prefix) / str(path).lstrip(os.sep) for path in (place, links))
    kept.mkdir(parents=True, exist_ok=True)
    used.parent.mkdir(parents=True, exist_ok=True)
    if not used.is_symlink():
        used.symlink_to(kept)


def plugins_below(plugin: str) -> list[str]:
    """Folders of the plugins that a plugin declares: it needs what they offer, and imports nothing of them."""
    project = tomllib.loads((ROOT / "plugins" / plugin / "pyproject.toml").read_text("utf-8"))["project"]
    named = [match[1] for line in project["dependencies"] if (match := re.match(r"mt-plugin-([a-z]+)", line))]
    return [name for name in named if f"plugins/{name}" not in BESIDE]


def core_from_wheel(folder: Path) -> Path:
    """The folder of packages that all environments share: the core, and what trains and tests."""
    built = [wheel(ROOT / part, folder) for part in BESIDE]
    output_of(
        *PIP, "install", "--no-deps", "--no-index", "--no-compile", "--target", folder / "core", *built, timeout=600
    )
    return folder / "core"


@dataclass(frozen=True)
class Environment:
    """One that has a Python of its own."""

    folder: Path

    @classmethod
    def make(cls, core: Path, plugin: str, folder: Path) -> Environment:
        """The core, this plugin and what it declares of ours from their wheels, and what is installed here of others."""
        made = cls(folder / "environment")
        venv.create(made.folder, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(made.folder)}))
        link_packages(packages)
        (packages / "core.pth").write_text(str(core))
        built = [wheel(ROOT / "plugins" / name, folder) for name in (plugin, *plugins_below(plugin))]
        install = [*PIP, "--python", str(made.python), "install", "--no-deps", "--no-index", "--no-compile"]
        output_of(*install, *built, timeout=600)
        return made

    @classmethod
    def clean(cls, plugin: str, folder: Path, *tools: str) -> Environment:
        """Nothing but what pip brings for the core's and the plugin's wheels, and these tools; torch as it is here."""
        made = cls(folder / "environment")
        venv.create(made.folder, symlinks=True)
        parts = [*BESIDE, *(f"plugins/{name}" for name in (plugin, *plugins_below(plugin)))]
        wheels = [str(wheel(ROOT / part, folder)) for part in parts]
        torch = f"torch=={version('torch').partition('+')[0]}"
        output_of(*PIP, "--python", str(made.python), "install", "pip", torch, *wheels, *tools, timeout=1500)
        return made

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run_module(self, *words: str | Path, timeout: int = 280, **variables: str) -> str:
        """What ``python -m`` says there, in a folder of its own."""
        return output_of(self.python, "-m", *words, cwd=self.folder, timeout=timeout, **variables)
