"""What test_alone.py runs with the Python of an environment with one plugin, beside the plugin's own tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distributions, entry_points, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).parent))

from environments import plugins_below

import mt_core
from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile

ROOT = Path(__file__).parents[2]
PLUGIN = os.environ["MT_ALONE"]
BESIDE = {"mt-core", "mt-train", "mt-tools", "mt-conformance", "mt-plugin-standard"}
KIT = ["--model", "kit-tiny"]
ASKED = [
    *("--evaluations.perplexity.rows.name", "csv", "--evaluations.perplexity.rows.path", "rows.csv"),
    *("--evaluations.perplexity.column", "prompt"),
]
ENCODED = ["--encoders", "hyenadna", "--encoders.hyenadna.projector", "linear", "--encoders.hyenadna.dim", "16"]
SEEN = ["--encoders", "clip", "--encoders.clip.image", "8", "--encoders.clip.patch", "4", "--encoders.clip.width", "16"]
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A red PNG of one pixel."""
REWARDED = ["--objective", "grpo", "--objective.prompts", "2", "--objective.group", "2", "--rewards", "length"]
REWARDED += [
    "--rewards.length.most",
    "2",
    "--rewards.length.ramp",
    "2",
    "--objective.max-new-tokens",
    "4",
    "--data.eval",
    "none",
]
RUNS = {
    "adapters": [*KIT, "--adapter", "dora"],
    "alignment": [*KIT, "--dataset", "jsonl", "--dataset.path", "pairs.jsonl", "--objective", "dpo"],
    "bio": [*KIT, "--dataset", "jsonl", "--dataset.path", "sequences.jsonl", "--objective", "sft", *ENCODED],
    "board": KIT,
    "callbacks": [*KIT, "--callbacks", "ema", "--task-print", "perplexity"],
    "datasets": [*KIT, "--dataset", "csv", "--dataset.path", "rows.csv", "--objective", "sft"],
    "distillation": [*KIT, "--objective", "distill-pretrain", "--objective.teacher-path", "teacher"],
    "evals": [*KIT, "--evaluations", "perplexity", *ASKED],
    "multimodal": [*KIT, "--dataset", "jsonl", "--dataset.path", "pictures.jsonl", "--objective", "sft", *SEEN],
    "optim": [*KIT, "--optimizer", "muon", "--schedule", "linear"],
    "quantizers": [*KIT, "--quantizer", "nf4", "--adapter", "lora"],
    "search": [*KIT, "--callbacks", "median-pruning", "--callbacks.median-pruning.history", "history.json"],
    "serve": KIT,
    "trackers": [*KIT, "--trackers", "csv"],
    "vllm": [
        *KIT,
        *REWARDED,
        "--dataset",
        "jsonl",
        "--dataset.path",
        "pairs.jsonl",
        "--sampler",
        "vllm",
        "--sampler.folder",
        "w",
    ],
}
"""Words of a run with what the plugin brings; the rest of it is the core's, the kit's tiny model where it brings none.

A plugin that is not here is a model family of its name."""
OF_COMMANDS = ("board", "serve")
"""Plugins that bring a command, and nothing that takes part in a run."""
WORDS = RUNS.get(PLUGIN, ["--model", PLUGIN])


def test_nothing_of_ours_is_there_but_what_every_plugin_is_tested_beside() -> None:
    ours = {each.name for each in distributions() if each.name.startswith("mt-")}
    expected = {PLUGIN, *plugins_below(PLUGIN)}
    assert ours == {*BESIDE, *(f"mt-plugin-{name}" for name in expected)}
    assert {point.name for point in entry_points(group="mt_core.plugins")} == {"standard", "train", *expected}
    modules = {f"mt_plugin_{path.name.replace('-', '_')}" for path in (ROOT / "plugins").iterdir()} - {
        "mt_plugin_standard"
    }
    assert {name for name in modules if PathFinder.find_spec(name)} == {
        f"mt_plugin_{name.replace('-', '_')}" for name in expected
    }
    assert not Path(mt_core.__file__).is_relative_to(ROOT), "from the wheel, not from the sources"


def test_what_ours_declare_is_installed_in_a_version_that_they_take() -> None:
    lacking = []
    for each in distributions():
        for line in each.requires or () if each.name.startswith("mt-") else ():
            needed = Requirement(line)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            try:
                found = version(needed.name)
            except PackageNotFoundError:
                found = "none"
            if found == "none" or not needed.specifier.contains(found, prereleases=True):
                lacking.append(f"{each.name} takes {line}, here is {found}")
    assert not lacking


@pytest.fixture
def served(tmp_path: Path) -> Iterator[list[str]]:
    """Words that name the server which a plugin asks; none for one that asks nobody."""
    if "--sampler" not in WORDS:
        yield []
        return
    sys.path.insert(0, str(ROOT / "tests/vllm_server"))
    from stand_in import StandIn, serve

    from mt_conformance import BaseSamplerConformance

    with serve(StandIn(BaseSamplerConformance().loaded(tmp_path))) as url:
        yield ["--sampler.url", url]


@pytest.mark.usefixtures("kit_model")
def test_two_steps_are_trained_with_what_it_brings(
    served: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("prompt,response\n" + "".join(f"say {n},it is {n}\n" for n in range(32)))
    pairs = [{"prompt": f"say {n}", "chosen": f"it is {n}", "rejected": "no"} for n in range(32)]
    Path("pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pairs))
    rows = [{"prompt": "<dna>?", "response": "no", "dna": "ACGTN"} for _ in range(32)]
    Path("sequences.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    seen = {"prompt": "<image>?", "response": "no", "images": [f"data:image/png;base64,{PICTURE}"]}
    Path("pictures.jsonl").write_text("".join(json.dumps(seen) + "\n" for _ in range(32)))
    Path("history.json").write_text("[]")
    few = ["--train.steps", "2", "--train.micro-batch-size", "2", "--train.sequence-len", "64", "--output", "run"]
    if "teacher" in WORDS:
        assert main([*KIT, *few[:-1], "teacher"]) == 0
    assert main([*WORDS, *served, *few]) == 0
    assert len(MetricsFile(Path("run/metrics.jsonl")).read()) == 2
    lock = json.loads(Path("run/plugins.lock.json").read_text())
    assert (f"mt-plugin-{PLUGIN}" in lock["plugins"]) == (PLUGIN not in OF_COMMANDS)


def test_its_commands_say_their_version(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [each for each in entry_points(group="console_scripts") if each.value.startswith(f"mt_plugin_{PLUGIN}.")]
    assert commands or PLUGIN not in OF_COMMANDS
    for command in commands:
        with suppress(SystemExit):
            command.load()(["--version"])
        assert capsys.readouterr().out.startswith(f"mt-plugin-{PLUGIN} ")
