"""Tiny distributions, one for each thing that a stranger's plugin may do, built as real wheels.

Each module first writes its own name into the file that ``MT_CANARY`` names, so that a test sees who was imported.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HEAD = """
import os
from mt_core import Component, ModelConfig, ModelFamily, MtConfig, hookimpl
if os.environ.get("MT_CANARY"):
    with open(os.environ["MT_CANARY"], "a") as canary:
        canary.write(__name__ + "\\n")
"""

GOOD = """
from typing import Literal
from pydantic import Field

print("a plugin that greets whoever imports it")

class Metre(MtConfig):
    feet: int = Field(5, gt=0, le=8, description="length of a line (feet)")
    foot: Literal["iamb", "trochee"] = Field("iamb", description="which foot")

class PoemsConfig(MtConfig):
    path: str = Field(description="folder of poems")
    languages: tuple[str, ...] = Field((), description="languages to keep; none keeps all")
    rate: float | None = Field(None, ge=0, description="poems read ahead (per second)")
    metre: Metre = Metre()

class VerseConfig(ModelConfig):
    dim: int = Field(8, gt=0, description="width (channels)")

@hookimpl
def mt_datasets():
    return [Component(name="poems", config=PoemsConfig, summary="poems, one file each", source="https://example.org/p")]

@hookimpl
def mt_model_configs():
    sizes = {"small": {"vocab_size": 9, "max_seq_len": 4}, "large": {"vocab_size": 9, "max_seq_len": 4, "dim": 16}}
    return [ModelFamily(name="verse", config=VerseConfig, summary="a model", variants=sizes, default_variant="small")]

@hookimpl
def mt_train_models():
    return [Component(name="verse", config=VerseConfig, summary="a trainable model")]
"""

DATASET = """
@hookimpl
def mt_datasets():
    return [Component(name="{name}", summary="rows of {name}"{more})]
"""


@dataclass(frozen=True)
class Exhibit:
    """One distribution: ``mt-NAME`` with the entry point ``NAME`` and the module ``exhibit_NAME``."""

    name: str
    body: str
    version: str = "0.1.0"

    @property
    def module(self) -> str:
        return "exhibit_" + self.name.replace("-", "_")

    def write(self, folder: Path) -> Path:
        """Its source tree."""
        root = folder / self.name
        root.mkdir()
        (root / f"{self.module}.py").write_text(HEAD + self.body)
        (root / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
            f'[project]\nname = "mt-{self.name}"\nversion = "{self.version}"\n'
            f'[project.entry-points."mt_core.plugins"]\n{self.name} = "{self.module}"\n'
            f'[tool.setuptools]\npy-modules = ["{self.module}"]\n'
        )
        return root


EXHIBITS = [
    Exhibit("good", GOOD, "1.2.0"),
    Exhibit("lost", "import a_module_that_nobody_has\n"),
    Exhibit("leaver", "import sys\nsys.exit(3)\n"),
    Exhibit("misspelt", DATASET.format(name="rows", more="").replace("mt_datasets", "mt_dataset")),
    Exhibit("greedy", DATASET.format(name="rows", more="").replace("mt_datasets()", "mt_datasets(config)")),
    Exhibit("lenient", DATASET.format(name="rows", more="").replace("mt_datasets()", "mt_datasets(path='here')")),
    Exhibit("bare", DATASET.format(name="rows", more="").replace("@hookimpl\n", "")),
    Exhibit("constant", "mt_datasets = [Component(name='rows', summary='rows')]\n"),
    Exhibit("mapping", "@hookimpl\ndef mt_datasets():\n    return {'rows': Component(name='rows', summary='rows')}\n"),
    Exhibit("strings", "@hookimpl\ndef mt_datasets():\n    return ['rows']\n"),
    Exhibit("raising", "@hookimpl\ndef mt_datasets():\n    raise KeyError('rows')\n"),
    Exhibit("castor", DATASET.format(name="twin", more=""), "1.0.0"),
    Exhibit("pollux", DATASET.format(name="twin", more=""), "2.0.0"),
    Exhibit("usurper", DATASET.format(name="text", more="")),
    Exhibit("standin", DATASET.format(name="text", more=", replaces='text'")),
    Exhibit("misnomer", DATASET.format(name="prose", more=", replaces='txet'")),
    Exhibit(
        "reserved",
        "class Config(MtConfig):\n    name: str = 'x'\n" + DATASET.format(name="rows", more=", config=Config"),
    ),
    Exhibit(
        "oversize",
        "class Config(ModelConfig):\n    pass\n@hookimpl\ndef mt_model_configs():\n"
        "    return [ModelFamily(name='oversize', config=Config, summary='a model', default_variant='one',"
        " variants={'one': {'vocab_size': -1, 'max_seq_len': 4}})]\n",
    ),
]


def build(folder: Path) -> Path:
    """Wheels of all exhibits, in one call of pip, and installed by another into ``folder/site``."""
    sources, wheels, site = folder / "sources", folder / "wheels", folder / "site"
    sources.mkdir(parents=True)
    roots = [str(exhibit.write(sources)) for exhibit in EXHIBITS]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    flags = ["--no-deps", "--no-index"]
    subprocess.run([*pip, "wheel", *flags, "--no-build-isolation", "-w", str(wheels), *roots], check=True)
    subprocess.run(
        [*pip, "install", *flags, "--target", str(site), *map(str, sorted(wheels.glob("*.whl")))], check=True
    )
    return folder
