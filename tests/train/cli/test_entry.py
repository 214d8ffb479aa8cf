"""The first help is one screen, and made of nothing that is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mt_core.plugins.host import PluginHost
from mt_train.cli.entry import main
from mt_train.cli.request import REPEATED, SWITCHES, VALUES
from mt_train.cli.short_help import SHORT_HELP
from mt_train.plugins.completion import write_completion

CODE = """
import json, sys
from mt_train.cli.entry import main
code = main(["--help"])
print(json.dumps([code, sorted(sys.modules)]))
"""


def test_the_first_help_is_one_screen_and_imports_neither_plugins_nor_pydantic() -> None:
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    *page, last = said.stdout.splitlines()
    code, modules = json.loads(last)
    assert code == 0
    assert len(page) <= 24
    assert max(map(len, page)) <= 110
    assert "\n".join(page) == SHORT_HELP
    heavy = {"pydantic", "pluggy", "yaml", "importlib.metadata", "mt_train.cli.train", "mt_plugin_standard"}
    assert not heavy & set(modules)


def test_every_option_of_the_first_help_exists() -> None:
    script = write_completion("mt-train", "fish", PluginHost.discover(), switches=SWITCHES, values=(*VALUES, *REPEATED))
    known = set(re.findall(r"-l '?([a-z][a-z0-9.-]*)", script))
    shown = set(re.findall(r"--([a-z][a-z.-]*)", SHORT_HELP.partition("\n")[2].replace("list --components", "")))
    assert len(shown) >= 20
    assert shown <= known


def test_the_examples_of_the_first_help_make_one_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "response": "b"}\n')
    shown = re.findall(
        r"^  (--(?:model|dataset|adapter|optimizer|train|data|checkpoint)[a-z.-]*) ([\w.-]+) ", SHORT_HELP, re.MULTILINE
    )
    assert len(shown) == 8
    words = [word for pair in shown for word in pair]
    assert main([*words, "--dataset.path", str(rows), "--objective", "sft", "--print-config"]) == 0
    assert "global_batch_size: 32" in capsys.readouterr().out


def test_h_alone_is_the_same_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    assert capsys.readouterr().out.strip() == SHORT_HELP


def test_help_of_a_topic_shows_that_one_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "eval"]) == 0
    section = capsys.readouterr().out
    assert "--eval.every-steps" in section
    assert "--train.steps" not in section
    assert main(["--help", "adapter", "--adapter", "lora"]) == 0
    kind = capsys.readouterr().out
    assert "--adapter.rank" in kind
    assert "--eval.every-steps" not in kind
    assert main(["--help", "all"]) == 0
    everything = capsys.readouterr().out
    assert "--eval.every-steps" in everything
    assert "--restart" in everything
    assert "--adapter NAME" not in section


@pytest.mark.parametrize(
    ("word", "says", "not_said"),
    [
        ("warmup", ["--schedule.warmup-ratio", "--schedule.warmup-steps"], "--train"),
        ("lr", ["--optimizer.lr  "], "--adapter"),
        ("max_steps", ["max_steps of the Hugging Face Trainer is --train.steps here."], "--eval"),
        ("lora", ["--adapter lora  ", "its options: --adapter lora --help"], "--train"),
    ],
)
def test_help_of_any_word_finds_options_and_components_by_it(
    word: str, says: list[str], not_said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help", word]) == 0
    found = capsys.readouterr().out
    assert all(each in found for each in says)
    assert not_said not in found.replace("--train.steps here", "")


def test_an_unknown_topic_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "dta"]) == 2
    assert "no topic 'dta'. Did you mean 'data'?" in capsys.readouterr().err


def test_an_interrupt_while_modules_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupt:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "mt_train.cli.train":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "mt_train.cli.train", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupt, *sys.meta_path])
    assert main(["--model", "llama"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
