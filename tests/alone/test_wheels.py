"""Wheels in environments with nothing else of ours, where pip itself finds what one needs of the others.

Packages of others are links to those that are installed here, and no more of them than the wheels declare: nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).parent))

from environments import PIP, ROOT, Environment, output_of, share_bytecode

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

HEAVY = {"deepspeed", "transformers", "tensorboard", "matplotlib", "sentencepiece", "tokenizers", "pyyaml"}
"""Packages that the core does without."""


def _script() -> ModuleType:
    spec = spec_from_file_location("wheels_script", ROOT / ".ci/wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WHEELS = _script()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    WHEELS.build(folder, "mt-plugin-llama", "mt-conformance")
    return folder


def needed_distributions(*names: str) -> set[str]:
    """Distributions of others that these of ours need, one through the other, and that are installed here."""
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            try:
                lines = distribution(name).requires or []
            except PackageNotFoundError:
                continue
            found.add(name)
            wanted = [Requirement(line) for line in lines]
            waiting += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    return {name for name in found if not name.startswith("mt-")}


def environment(folder: Path, wheels: Path, *ours: str) -> Environment:
    """An environment with these of ours from their wheels, and of others what they need; setuptools builds what is written there."""
    made = Environment(folder / "environment")
    venv.create(made.folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(made.folder)}))
    for name in sorted(needed_distributions(*ours, "setuptools")):
        found = distribution(name)
        for part in {path.parts[0] for path in found.files or []} - {"..", "__pycache__"}:
            place = Path(str(found.locate_file(part)))
            if place.exists() and not (packages / part).exists():
                (packages / part).symlink_to(place)
        share_bytecode(Path(str(found.locate_file(""))), packages)
    install = [*PIP, "--python", str(made.python), "install", "--no-index", "--no-compile", "--find-links", str(wheels)]
    output_of(*install, *ours, timeout=600)
    return made


def listed_plugins(made: Environment) -> set[str]:
    found = output_of(sys.executable, "-m", "pip", "--python", made.python, "list", "--format", "json", timeout=120)
    return {each["name"].lower() for each in json.loads(found)}


def test_each_distribution_is_built_after_what_it_needs() -> None:
    order = WHEELS.in_order()
    assert set(order) == WHEELS.distributions().keys()
    for number, name in enumerate(order):
        assert WHEELS.needs(WHEELS.distributions()[name]) <= set(order[:number]), name


def test_a_model_brings_every_command_and_trains(wheels: Path, tmp_path: Path) -> None:
    made = environment(tmp_path, wheels, "mt-plugin-llama")
    commands = {path.name for path in (made.folder / "bin").glob("mt-*")}
    assert commands == {
        *("mt-plugins", "mt-train", "mt-generate", "mt-eval", "mt-data"),
        *("mt-report", "mt-convert", "mt-export", "mt-checkpoint"),
    }
    words = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "2", "--train.micro-batch-size", "2"]
    output_of(made.folder / "bin/mt-train", *words, "--output", "run", cwd=tmp_path, timeout=600)
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2


def test_the_core_alone_lists_plugins_and_brings_nothing_heavy(wheels: Path, tmp_path: Path) -> None:
    made = environment(tmp_path, wheels, "mt-core")
    found = listed_plugins(made)
    assert "mt-core" in found
    assert not found & (HEAVY)
    assert not {name for name in found if name.startswith("mt-")} - {"mt-core"}
    plugins = made.folder / "bin/mt-plugins"
    assert json.loads(output_of(plugins, "list", "--json", cwd=tmp_path, timeout=120))["plugins"] == []
    assert output_of(plugins, "check", cwd=tmp_path, timeout=120) == "no plugin is installed\n"
    output_of(plugins, "new", "schedule", "mine", cwd=tmp_path, timeout=120)
    assert (tmp_path / "mt-plugin-mine" / "pyproject.toml").is_file()
    output_of(made.python, "-c", "import mt_core.nn, mt_core.adapters", cwd=tmp_path, timeout=120)


def test_the_kit_checks_an_adapter_where_nothing_trains(wheels: Path, tmp_path: Path) -> None:
    made = environment(tmp_path, wheels, "mt-core", "mt-conformance")
    output_of(made.folder / "bin/mt-plugins", "new", "adapter", "mine", cwd=tmp_path, timeout=120)
    source = write_plugin(tmp_path)
    output_of(
        *PIP, "--python", made.python, "install", "--no-index", "--no-deps", "--no-build-isolation", source, timeout=300
    )
    out = output_of(made.python, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "tests", cwd=source, timeout=900)
    assert re.search(r"\d+ passed", out)
    assert "mt-train" in out, "what trains is skipped, with the name of the distribution"


def write_plugin(folder: Path) -> Path:
    """The new plugin's folder."""
    return next(path.parent for path in folder.glob("*/pyproject.toml"))
