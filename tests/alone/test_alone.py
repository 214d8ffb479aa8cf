"""Every plugin with nothing of ours but the core beside it, both from their wheels: what it needs is declared, and its suite passes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from environments import ROOT, Environment, plugins_below

PART = {
    "adapters": ["test_added.py", "test_dora.py", "test_lora.py", "test_pissa.py"],
    "alignment": ["test_conformance.py", "test_losses.py", "test_modifications.py"],
    "bio": ["test_hyenadna.py", "test_plugin.py", "test_sequences.py"],
    "board": ["test_tail.py", "test_glance.py"],
    "callbacks": ["."],
    "datasets": ["test_hub.py", "test_plugin.py"],
    "distillation": ["test_divergences.py", "test_loss.py"],
    "evals": ["choices", "test_held_out.py", "test_perplexity.py", "test_plugin.py"],
    "huggingface": ["test_conformance.py"],
    "llama": ["test_conformance.py", "test_tokenizer.py", "test_variants.py"],
    "multimodal": ["test_images.py"],
    "optim": ["test_plugin.py", "test_runs.py"],
    "quantizers": ["."],
    "search": ["test_plugin.py", "test_pruning.py"],
    "serve": ["test_tool_calls.py"],
    "trackers": ["."],
    "vllm": ["test_sampler.py", "test_weights.py"],
}
"""Files of each suite that take seconds, besides the small run; the whole of it is soaked. None for families like these, whose small
run is all that differs alone."""

SUITES = {"gpt-oss": "gpt_oss", "vllm": "vllm_server"}
"""Folders that have another name than their plugin: tests/ is where modules are looked for, and trl would take tests/vllm for vLLM."""

TOOLS = ("pytest>=9,<10", "pytest-timeout>=2.4,<3", "hypothesis>=6.100,<7")
REFERENCES = {"adapters": ["peft>=0.21,<0.22"]}
"""What a clean environment has for the tests alone, and what the part of a suite is compared with."""

PLUGINS = sorted({path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")} - {"standard"})


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Without a plugin; its programs are forked, and bring in no more than a start of it would."""
    environment = Environment.bare(tmp_path_factory.mktemp("bare"))
    yield environment
    assert environment.starts is not None
    environment.starts.close()


@pytest.fixture(scope="session", params=PLUGINS)
def plugin_alone(request: pytest.FixtureRequest, bare: Environment) -> tuple[str, Environment]:
    """A plugin, and the environment with the core and it."""
    plugin: str = request.param
    return plugin, bare.beside(plugin)


def test_it_is_all_that_is_listed(plugin_alone: tuple[str, Environment]) -> None:
    look_at(*plugin_alone)


def look_at(plugin: str, environment: Environment) -> None:
    listed = json.loads(environment.run_module("mt_core.cli.plugins", "list", "--json"))["plugins"]
    expected = [*sorted([plugin, *plugins_below(plugin), "standard"]), "train"]
    assert [each["name"] for each in listed] == expected
    assert environment.run_module("mt_core.cli.plugins", "check", "--strict").count("ok  ") == len(expected)


def test_a_part_of_its_suite_passes(plugin_alone: tuple[str, Environment], tmp_path: Path) -> None:
    plugin, environment = plugin_alone
    run_suite(plugin, environment, PART.get(plugin, []), tmp_path / "report.xml", timeout=1500)


@pytest.mark.soak
def test_its_whole_suite_passes(plugin_alone: tuple[str, Environment], tmp_path: Path) -> None:
    plugin, environment = plugin_alone
    run_suite(plugin, environment, ["."], tmp_path / "report.xml", timeout=1800)


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_clean_environment_has_all_that_it_needs(plugin: str, tmp_path: Path) -> None:
    """Everything is downloaded, so that nothing is there that another plugin or a tool of ours needs."""
    environment = Environment.clean(plugin, tmp_path, *TOOLS, *REFERENCES.get(plugin, ()))
    look_at(plugin, environment)
    run_suite(plugin, environment, PART.get(plugin, []), tmp_path / "report.xml", timeout=900)


def run_suite(plugin: str, environment: Environment, files: list[str], report: Path, *, timeout: int) -> None:
    """The small run and these files of the suite, with that environment's Python. Prints how many tests ran."""
    words = ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "-p", "no:cacheprovider", f"--junit-xml={report}"]
    words += ["-m", "not soak and not night"]  # the long ones of these files too
    suite = SUITES.get(plugin, plugin.replace("-", "_"))
    paths = [ROOT / "tests/alone/small_run.py", *(ROOT / "tests" / suite / name for name in files)]
    environment.run_module("pytest", *words, *paths, timeout=timeout, MT_ALONE=plugin)
    ran, skipped = (sorted(each) for each in results(report))
    own = [name for name in ran if f"tests.{suite}." in name]
    print(f"{plugin}: {len(own)} tests of its own ran, {len(skipped)} were skipped")
    assert len(ran) - len(own) == 4, "the small run"
    assert own or not files, f"nothing of tests/{suite} ran alone; skipped: {skipped}"


def results(report: Path) -> tuple[list[str], list[str]]:
    """Names of the tests that ran, and of those that were skipped."""
    ran: list[str] = []
    skipped: list[str] = []
    for case in cases(report):
        (ran if case.find("skipped") is None else skipped).append(f"{case.get('classname')}.{case.get('name')}")
    return ran, skipped


def cases(report: Path) -> Iterator[ElementTree.Element]:
    return ElementTree.parse(report).iter("testcase")
