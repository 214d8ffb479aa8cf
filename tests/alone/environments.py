"""Environments with the core and one plugin of ours, from wheels, beside the packages of others that are installed here.

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
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import forked_starts
from build_wheels import build_wheels

ROOT = Path(__file__).parents[2]
OURS = ("mt_", "__editable__.mt_", "__editable___mt_")
"""How everything begins that an installation of ours leaves in a folder of packages."""
BESIDE = ("core", "train", "tools", "conformance", "plugins/standard")
"""Beside which every plugin is tested."""
FORKED = ("pytest", "mt_core.cli.")
"""Programs of an environment that are forked from its server, which has imported no plugin but the standard one."""
OTHERS = tuple(name for name in forked_starts.PRELOADED if not name.startswith("mt_plugin_"))
PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")


def output_of(*command: str | Path, cwd: Path | None = None, timeout: int, **variables: str) -> str:
    """What a command printed, without what this process has on its path. Raises ``AssertionError`` with all of it when it fails."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**inherited, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        list(map(str, command)), env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def wheels(folder: Path, *parts: str) -> list[Path]:
    """Built from copies: in place, setuptools would pack what an earlier build left behind."""
    left = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    copies = [shutil.copytree(ROOT / part, folder / "sources" / part, ignore=left) for part in parts]
    build_wheels(folder / "wheels", *copies)
    return sorted((folder / "wheels").glob("*.whl"))


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
    named = [match[1] for line in project["dependencies"] if (match := re.match(r"mt-plugin-([a-z-]+)", line))]
    return [name for name in named if f"plugins/{name}" not in BESIDE]


def core_from_wheel(folder: Path) -> Path:
    """The folder of packages that all environments share: the core, and what trains and tests."""
    install = [*PIP, "install", "--no-deps", "--no-index", "--no-compile", "--target", folder / "core"]
    output_of(*install, *wheels(folder, *BESIDE), timeout=600)
    return folder / "core"


@dataclass(frozen=True)
class Environment:
    """One that has a Python of its own, and maybe a folder of packages beside those. ``starts``: what its programs are forked by."""

    folder: Path
    site: Path | None = None
    starts: forked_starts.Starts | None = None

    @classmethod
    def bare(cls, folder: Path) -> Environment:
        """The core from its wheels and what is installed here of others: what torch and DeepSpeed take to import, they take once."""
        made = cls(folder / "environment")
        venv.create(made.folder, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(made.folder)}))
        link_packages(packages)
        (packages / "core.pth").write_text(str(core_from_wheel(folder)))
        interpreter = forked_starts.Interpreter(str(made.python), FORKED, (*OTHERS, "mt_plugin_standard"))
        return replace(made, starts=forked_starts.Starts(real=forked_starts.MUST_BE_REAL, interpreter=interpreter))

    def beside(self, plugin: str) -> Environment:
        """This one with a plugin and what that declares of ours, from their wheels, in a folder that others of it do not see."""
        folder = self.folder / f"with-{plugin}"
        for wheel in wheels(folder, *(f"plugins/{name}" for name in (plugin, *plugins_below(plugin)))):
            ZipFile(wheel).extractall(folder / "site")  # what pip does with a wheel of pure Python
        return replace(self, site=folder / "site")

    @classmethod
    def clean(cls, plugin: str, folder: Path, *tools: str) -> Environment:
        """Nothing but what pip brings for the core's and the plugin's wheels, and these tools; torch as it is here."""
        made = cls(folder / "environment")
        venv.create(made.folder, symlinks=True)
        parts = [*BESIDE, *(f"plugins/{name}" for name in (plugin, *plugins_below(plugin)))]
        torch = f"torch=={version('torch').partition('+')[0]}"
        install = [*PIP, "--python", str(made.python), "install", "pip", torch]
        output_of(*install, *wheels(folder, *parts), *tools, timeout=1500)
        return made

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run_module(self, *words: str | Path, timeout: int = 280, **variables: str) -> str:
        """What ``python -m`` says there, in a folder of its own."""
        if self.site is not None:
            variables["PYTHONPATH"] = str(self.site)
        with forked_starts.asking(self.starts) if self.starts else nullcontext():
            return output_of(self.python, "-m", *words, cwd=self.folder, timeout=timeout, **variables)
