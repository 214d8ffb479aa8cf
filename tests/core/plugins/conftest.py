"""Real wheels of small plugins, good and bad, built once and installed into folders of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """
from mt_core import Component, hookimpl

@hookimpl
def mt_schedules():
    return [Component(name="{name}", summary="a schedule", build=lambda config, *, total_steps: lambda k: 1.0)]
"""

PLUGINS: dict[str, str] = {
    "acme-good": GOOD.format(name="steady"),
    "acme-import": "import a_module_that_nobody_has\n",
    "acme-exit": "import sys\nsys.exit('bye')\n",
    "acme-typo": GOOD.format(name="x").replace("mt_schedules", "mt_schedule"),
    "acme-arguments": GOOD.format(name="x").replace("mt_schedules()", "mt_schedules(config)"),
    "acme-defaults": GOOD.format(name="x").replace("mt_schedules()", "mt_schedules(config=None)"),
    "acme-unmarked": GOOD.format(name="x").replace("@hookimpl\n", ""),
    "acme-dict": GOOD.format(name="x").replace("return [", "return {1: ").replace("1.0)]", "1.0)}"),
    "acme-first": GOOD.format(name="twice"),
    "acme-second": GOOD.format(name="twice"),
    "acme-builtin": GOOD.format(name="cosine"),
    "acme-replaces": GOOD.format(name="cosine").replace('summary="', 'replaces="cosine", summary="'),
    "acme-reserved": """
from mt_core import Component, MtConfig, hookimpl

class Config(MtConfig):
    name: str = "x"

@hookimpl
def mt_schedules():
    return [Component(name="reserved", summary="takes the core's key", config=Config)]
""",
    "acme-canary": "import os, pathlib\npathlib.Path(os.environ['CANARY']).touch()\n" + GOOD.format(name="canary"),
}

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{dist}"
version = "1.{number}"
dependencies = ["mt-core>=0.1,<0.2"]
[project.entry-points."mt_core.plugins"]
{entry} = "{module}"
[tool.setuptools]
py-modules = ["{module}"]
"""

Environment = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def installed_plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one install folder per plugin."""
    base = tmp_path_factory.mktemp("plugins")
    sources = []
    for number, (dist, content) in enumerate(PLUGINS.items()):
        module = dist.replace("-", "_")
        source = base / "source" / dist
        source.mkdir(parents=True)
        (source / f"{module}.py").write_text(content)
        text = PROJECT.format(dist=dist, number=number, entry=dist.partition("-")[2], module=module)
        (source / "pyproject.toml").write_text(text)
        sources.append(str(source))
    pip = [sys.executable, "-m", "pip", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(base / "wheels"), *sources]
    subprocess.run(build, check=True, timeout=200)
    for dist in PLUGINS:
        wheel = next((base / "wheels").glob(f"{dist.replace('-', '_')}-*.whl"))
        target = str(base / "installed" / dist)
        subprocess.run(
            [*pip, "install", "--no-deps", "--no-index", "--target", target, str(wheel)], check=True, timeout=60
        )
    return base / "installed"


@pytest.fixture
def environment(installed_plugins: Path, tmp_path: Path) -> Environment:
    """Variables of an environment in which these plugins are installed too."""

    def make(*dists: str, **more: str) -> dict[str, str]:
        path = os.pathsep.join(str(installed_plugins / dist) for dist in dists)
        return {**os.environ, "PYTHONPATH": path, "CANARY": str(tmp_path / "canary"), **more}

    return make
