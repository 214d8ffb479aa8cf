"""Real wheels of small plugins, good and bad, built once and installed into folders of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from build_wheels import build_wheels

from mt_conformance.host import named_host
from mt_core.plugins.host import PluginHost

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

PLUGINS |= {
    "acme-constant": "from mt_core import Component\nmt_schedules = [Component(name='x', summary='a schedule')]\n",
    "acme-strings": "from mt_core import hookimpl\n@hookimpl\ndef mt_schedules():\n    return ['steady']\n",
    "acme-raises": "from mt_core import hookimpl\n@hookimpl\ndef mt_schedules():\n    raise KeyError('rate')\n",
    "acme-wrapper": GOOD.format(name="x").replace("@hookimpl", "@hookimpl(wrapper=True)"),
    "acme-misnomer": GOOD.format(name="wave").replace('summary="', 'replaces="cosin", summary="'),
    "acme-wave": GOOD.format(name="wave").replace('summary="', 'replaces="cosine", summary="'),
    "acme-size": """
from mt_core import ModelConfig, ModelFamily, hookimpl

@hookimpl
def mt_model_configs():
    return [
        ModelFamily(
            name="shrunk",
            config=ModelConfig,
            summary="a model",
            default_variant="one",
            variants={"one": {"vocab_size": -1, "max_seq_len": 4}},
        )
    ]
""",
    "acme-poems": """
from typing import Literal
from pydantic import Field
from mt_core import Component, ModelConfig, ModelFamily, MtConfig, hookimpl

print("a plugin that greets whoever imports it")

class Metre(MtConfig):
    feet: int = Field(5, gt=0, le=8, description="length of a line (feet)")
    foot: Literal["iamb", "trochee"] = Field("iamb", description="which foot")

class Poems(MtConfig):
    path: str = Field(description="folder of poems")
    languages: tuple[str, ...] = Field((), description="languages to keep; none keeps all")
    rate: float | None = Field(None, ge=0, description="read ahead (poems per second)")
    metre: Metre = Metre()

class Verse(ModelConfig):
    dim: int = Field(8, gt=0, description="width (channels)")

@hookimpl
def mt_datasets():
    return [Component(name="poems", config=Poems, summary="poems, one file each", source="https://example.org/poems")]

@hookimpl
def mt_model_configs():
    sizes = {"small": {"vocab_size": 9, "max_seq_len": 4}, "large": {"vocab_size": 9, "max_seq_len": 4, "dim": 16}}
    return [ModelFamily(name="verse", config=Verse, summary="a model", variants=sizes, default_variant="small")]

@hookimpl
def mt_train_models():
    return [Component(name="verse", config=Verse, summary="a trainable model")]
""",
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
        sources.append(source)
    pip = [sys.executable, "-m", "pip", "-q"]
    build_wheels(base / "wheels", *sources)
    wheels = {dist: next((base / "wheels").glob(f"{dist.replace('-', '_')}-*.whl")) for dist in PLUGINS}
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(base / "installed" / "all")]
    subprocess.run([*install, *map(str, wheels.values())], check=True, timeout=1500)
    for dist, wheel in wheels.items():  # what pip does with a wheel of pure Python, without half a second for each
        zipfile.ZipFile(wheel).extractall(base / "installed" / dist)
    return base / "installed"


@pytest.fixture
def environment(installed_plugins: Path, tmp_path: Path) -> Environment:
    """Variables of an environment in which these plugins are installed too."""

    def make(*dists: str, **more: str) -> dict[str, str]:
        path = os.pathsep.join(str(installed_plugins / dist) for dist in dists)
        return {**os.environ, "PYTHONPATH": path, "CANARY": str(tmp_path / "canary"), **more}

    return make


@pytest.fixture
def installs(installed_plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Installs plugins into this very process for one test; no others than these and the core's are allowed."""
    before = set(sys.modules)

    def install(*dists: str) -> Path:
        for dist in dists:
            monkeypatch.syspath_prepend(str(installed_plugins / dist))
        monkeypatch.setenv("MT_PLUGINS", ",".join(dists))
        monkeypatch.delenv("MT_BLOCK_PLUGINS", raising=False)
        return installed_plugins

    yield install
    for module in set(sys.modules) - before:
        if module.startswith("acme_"):
            del sys.modules[module]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PluginHost]]:
    """``hosts(acme_x=code, …)``: the built-ins and these plugins, each of a distribution of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def host(**plugins: str) -> PluginHost:
        for name, code in plugins.items():
            (tmp_path / f"{name}.py").write_text(code)
        return named_host(*plugins)

    yield host
    for name in set(sys.modules) - before:
        if name.startswith("acme_"):
            del sys.modules[name]
