"""What README and docs show, works: each page is followed from top to bottom, in a folder of its own.

In a ```sh block every command runs, and in a ```python block every line; what cannot run here says why in the first line
of its block (```sh skip=needs-slurm). A command that has to fail is followed by ``# exit code N``. ``mt-train`` is first
resolved exactly as it is shown, and then runs with a hundredth of its steps; tests of plugins leave launches out. A ```diff
block is applied, and a ```text output block is what the command before it prints, where ``…`` stands for anything.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from zipfile import ZipFile

import pytest
import yaml
from build_wheels import build_wheels

from mt_core.cli.plugins import main as mt_plugins
from mt_core.plugins.host import PluginHost
from mt_plugin_alignment.score_command import main as mt_score
from mt_plugin_board.command import main as board_main
from mt_plugin_board.server import Server
from mt_plugin_search.command import main as mt_search
from mt_plugin_serve.command import main as mt_serve
from mt_tools.cli.checkpoint import main as mt_checkpoint
from mt_tools.cli.convert import main as mt_convert
from mt_tools.cli.data import main as mt_data
from mt_tools.cli.eval import main as mt_eval
from mt_tools.cli.export import main as mt_export
from mt_tools.cli.generate import main as mt_generate
from mt_tools.cli.report import main as mt_report
from mt_train.cli.entry import main as mt_train
from mt_train.cli.request import REPEATED, SWITCHES, VALUES
from mt_train.config.run import SECTIONS, AdapterOptions, ModelOptions
from mt_train.tracking import recorder
from mt_train.tracking.plot import plot_losses

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted(path for path in DOCS.rglob("*.md") if path.name != "log.md")
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("[!d]*/README.md")), *sorted(ROOT.glob("plugins/*/README.md")), *GUIDES]
TABLES = [DOCS / "from-trainer.md", DOCS / "from-llama-factory.md", DOCS / "from-qlora.md"]
SKIPPED = {
    "sets-up": "installs packages; .ci/run and test_first_run.py follow the same lines",
    "needs-slurm": "submits a job; the script itself runs in a test below",
    "needs-a-download": "fetches weights from the Hub",
    "needs-a-server": "starts or asks a server on a GPU, or with more models; tests/vllm_server and tests/serve ask some",
    "needs-the-hub": "writes to the Hub; tests/tools/convert/test_publish.py has one in memory",
    "needs-a-launcher": "starts Python anew in every process, which takes seconds",
}
SITE = "site-packages"
"""Folder, in that of a page, which ``pip install`` of the page writes into."""


def mt_board(words: list[str]) -> int:
    """The board without its loop, which ends with a signal only; on a free port."""
    with mock.patch.object(Server, "serve_forever"):
        return board_main([*words, "--port", "0"])


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "mt-train": mt_train,
    "mt-generate": mt_generate,
    "mt-eval": mt_eval,
    "mt-data": mt_data,
    "mt-checkpoint": mt_checkpoint,
    "mt-board": mt_board,
    "mt-report": mt_report,
    "mt-convert": mt_convert,
    "mt-export": mt_export,
    "mt-plugins": mt_plugins,
    "mt-search": mt_search,
    "mt-serve": mt_serve,
    "mt-score": mt_score,
}
HERE = {
    "pytest (?!.*-m )": "-m pytest -m 'not mt_launch' ",
    "pytest ": "-m pytest ",
    "python -m build ": "-m build -n ",
}
"""Commands of a page → how they run here: without launches, and without fetching anything."""
SCALE = 100
"""Steps of a page beside those of the test."""
TRIALS = 20
"""Trials of a page beside those of the test, each a process that takes seconds to start."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    info: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w+) *([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def commands(text: str) -> Iterator[str]:
    """The commands of a block: lines that end in a backslash go on, and a here-document belongs to its command."""
    lines = iter(text.splitlines())
    for line in lines:
        while line.endswith("\\"):
            line = line[:-1] + next(lines).strip()
        if here := re.search(r"<<'(\w+)'", line):
            for more in lines:
                line += "\n" + more
                if more == here[1]:
                    break
        if line.strip() and not line.startswith("#"):
            yield line + "\n"


def smaller(words: list[str]) -> list[str]:
    """The same training with a hundredth of the steps, or two where none are given."""
    small = list(words)
    for place, word in enumerate(words):
        if re.fullmatch(r"--\w+\.(every-)?steps", word) and words[place + 1].isdigit():
            small[place + 1] = str(max(1, int(words[place + 1]) // SCALE))
        if word == "--trials":
            small[place + 1] = str(max(1, int(words[place + 1]) // TRIALS))
    goes_on = "--resume" in words and "auto" not in words
    given = any(word in ("--train.steps", "--train.epochs", "--train.max-minutes") for word in words)
    if "--config" in words:
        given = given or "epochs" in Path(words[words.index("--config") + 1]).read_text()
    return small if goes_on or given else [*small, "--train.steps", "2"]


class Reader:
    """Somebody who follows a page."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = patch, capsys
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._said = ""
        self.began: list[subprocess.Popen[str]] = []

    def follow(self, block: Block) -> None:
        if block.info.startswith("skip="):
            assert block.info.removeprefix("skip=") in SKIPPED, f"unknown reason: {block.info}"
        elif block.language == "python":
            self._patch.syspath_prepend("")  # an interpreter finds files of its folder
            exec(compile(block.text, "page", "exec"), self._names)
        elif block.language == "diff":
            apply(block.text)
        elif block.info == "output":
            assert re.search(pattern(block.text), self._said), f"{block.text}\nis not in\n{self._said}"
        elif block.language == "sh":
            self._said = ""
            for command in commands(block.text):
                self._run(command)

    def _run(self, command: str) -> None:
        expected = re.search(r"# exit code (\d+)", command)
        if command.startswith("cd "):
            os.chdir(command.split()[1])
            return
        if command.startswith("pip install "):
            self._install(shlex.split(command)[-1], editable=" -e " in command)
            return
        first, bar, last = command.partition(" | ")
        if _name(last if bar else command) not in COMMANDS:
            self._shell(command, int(expected[1]) if expected else 0)
            return
        self._patch.setattr("sys.stdin", io.StringIO(_output(first) if bar else ""))
        words = shlex.split(last if bar else command, comments=True)
        with self._patch.context() as patch:
            while re.fullmatch(r"[A-Z_]+=.*", words[0]):
                patch.setenv(*words.pop(0).split("=", 1))
            code = self._call(*words)
        out, err = self._capsys.readouterr()
        assert code == (int(expected[1]) if expected else 0), f"{command}{err}"
        assert out or err, f"{command} said nothing"
        self._said += out + err

    def _shell(self, command: str, expected: int) -> None:
        for shown, run in HERE.items():
            command = re.sub(f"^{shown}", f"python {run}", command)
        # Without a shell between, it can be forked.
        plain = re.fullmatch(r"python -m pytest( '[^'\n]*'|[\w\s./-])*(#.*\n)?", command)
        words = [sys.executable, *shlex.split(command, comments=True)[1:]] if plain else ["bash", "-ec", command]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        self._said += ended.stdout + ended.stderr
        assert ended.returncode == expected, f"{command}{self._said}"

    def _install(self, place: str, *, editable: bool) -> None:
        """Into a folder of the test, from which this process and those that it starts import; edits of an editable one count.

        The wheel is built as pip builds it, in a fork; that pip itself builds a new plugin shows tests/alone/test_wheels.py.
        """
        site, package = str(Path(SITE).absolute()), Path(place.partition("[")[0]).absolute()
        with tempfile.TemporaryDirectory() as wheels:
            build_wheels(Path(wheels), package)
            (wheel,) = Path(wheels).iterdir()
            ZipFile(wheel).extractall(site)  # what pip does with a wheel of pure Python
        metadata = Path(site, "-".join(wheel.name.split("-")[:2]) + ".dist-info")
        (metadata / "direct_url.json").write_text(json.dumps({"url": package.as_uri(), "dir_info": {}}))  # PEP 610
        for name, module in list(sys.modules.items()):  # of the same package, installed earlier on the page
            if (getattr(module, "__file__", None) or "").startswith(site):
                del sys.modules[name]
        for folder in [site, str(package / "src")] if editable else [site]:
            self._patch.syspath_prepend(folder)
            self._patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")])))

    def _call(self, name: str, *words: str) -> int:
        if name == "mt-search":
            return mt_search(smaller(list(words)))
        if words[-1:] == ("&",):
            return self._begin(name, *words[:-1])
        if name != "mt-train":
            try:
                return COMMANDS[name](list(words))
            except SystemExit as ended:  # argparse, after --help
                return int(ended.code or 0)
        if any(word in words for word in ("--help", "--print-config")):
            return mt_train(list(words))
        with mock.patch.object(PluginHost, "discover", functools.cache(PluginHost.discover)):  # once, for both
            if "--train.seeds" not in words and (code := mt_train([*words, "--print-config"])):
                return code
            return mt_train(smaller(list(words)))

    def _begin(self, name: str, *words: str) -> int:
        """A command that goes on beside those that follow it, from its first line on."""
        module = COMMANDS[name].__module__
        started = subprocess.Popen([sys.executable, "-m", module, *words], stderr=subprocess.PIPE, text=True)
        self.began.append(started)
        assert started.stderr is not None
        print(started.stderr.readline())
        return 0

    def end(self) -> None:
        """End what still runs."""
        for started in self.began:
            started.terminate()
            assert started.wait(60) == 0


def apply(diff: str) -> None:
    """Edit files as ``patch -p1`` does, but only where the lines are found once."""
    for name, hunks in re.findall(r"^\+\+\+ b/(.*)\n((?:(?:[@ +-](?!-- ).*)?\n)+)", diff, re.MULTILINE):
        text = Path(name).read_text(encoding="utf-8")
        for hunk in re.split(r"^@@.*\n", hunks, flags=re.MULTILINE)[1:]:
            lines = [line if line.strip() else " \n" for line in hunk.splitlines(keepends=True)]
            old = "".join(line[1:] for line in lines if line[0] != "+")
            assert text.count(old) == 1, f"{name} has {text.count(old)} times:\n{old}"
            text = text.replace(old, "".join(line[1:] for line in lines if line[0] != "-"))
        Path(name).write_text(text, encoding="utf-8")


def pattern(shown: str) -> str:
    """What a page shows, as a regular expression: ``…`` is any text in a line, and by itself any lines."""
    lines = (
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in shown.splitlines()
    )
    return "(?m)^" + "".join(lines).removesuffix(r"\n")


def _name(command: str) -> str:
    """The program that a command starts, behind its settings of the environment."""
    return re.sub(r"^([A-Z_]+=\S* )*", "", command).split()[0]


def _output(command: str) -> str:
    return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def pretrained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with tokenizer and chat template, as ``save_pretrained`` writes it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("pretrained") / "my-llama"
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(["What is the capital of France? Paris."] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
        "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=512, **shape, **ends)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, pretrained_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pages suppose a reader to have: a pretrained model, texts and rows."""
    shutil.copytree(pretrained_folder, tmp_path / "my-llama")
    (tmp_path / "my_texts").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "my_texts" / f"{name}.txt").write_text(f"This is text {name}. It has two sentences.\n\nAnd more.\n")
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    # Where CI is set, pytest writes longer summaries than at a reader's terminal.
    for name in ("MT_PATHS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_followed(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = Reader(monkeypatch, capsys)
    if "loss.png" in page.read_text(encoding="utf-8"):
        monkeypatch.setattr(recorder, "plot_losses", plot_losses)  # the real one
    try:
        for block in blocks(page):
            reader.follow(block)
    finally:
        reader.end()


def test_the_example_of_fine_tuning_learns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (ROOT / "examples/finetune.py").read_text(encoding="utf-8")
    exec(compile(source, "finetune.py", "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    right, total = map(int, re.findall(r"right answers: (\d+) of (\d+)", out)[-1])
    assert right == total, out


def test_the_slurm_script_passes_the_signal_on_and_queues_the_run_again(folder: Path) -> None:
    script = re.search(r"cat > train\.sbatch <<'END'\n(.*?)^END$", (DOCS / "resume.md").read_text(), re.M | re.S)
    assert script is not None
    (folder / "train.sbatch").write_text(script[1])
    stubs = folder / "bin"
    stubs.mkdir()
    # The signal comes while the script waits; saving then takes a moment, as that of a run does.
    wait = 'trap "sleep 0.2; exit 75" USR1; sleep 0.5; kill -USR1 $PPID; while true; do sleep 0.05; done'
    for name, content in {"mt-train": f'echo "$@" >> trained\n{wait}', "scontrol": 'echo "$@" >> asked'}.items():
        (stubs / name).write_text(f"#!/bin/bash\n{content}\n")
        (stubs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    ended = subprocess.run(["bash", "train.sbatch"], env=environment, timeout=30)
    assert ended.returncode == 75
    assert (folder / "asked").read_text() == "requeue 17\n"
    assert "--resume auto" in (folder / "trained").read_text()


def train_options() -> set[str]:
    """Everything that ``mt-train`` understands with the plugins that are here."""
    host = PluginHost.discover()
    known = {*SWITCHES, *VALUES, *REPEATED, *host.kinds.slots, *host.kinds.lists, "train.seeds"}
    known |= {f"model.{key}" for key in ModelOptions.model_fields}
    known |= {f"adapter.{key}" for key in AdapterOptions.model_fields}
    known |= {f"{section}.{key}" for section, config in SECTIONS.items() for key in config.model_fields}
    for slot in host.kinds.slots:
        known |= {f"{slot}.{key}" for offer in host.offers(slot) for key in offer.component.config.model_fields}
    return {"--" + key.replace("_", "-") for key in known}


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.stem)
def test_every_option_in_the_second_column_of_a_table_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {"mt-train": train_options()}
    for name in ("mt-generate", "mt-eval", "mt-report", "mt-convert"):
        with contextlib.suppress(SystemExit):
            COMMANDS[name](["--help"])
        known[name] = set(re.findall(r"--[a-z][a-z.-]*", capsys.readouterr().out)) | {"--dataset", "--dataset.path"}
    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) >= 25
    for cells in rows:
        for span in re.findall(r"`([^`]+)`", cells[1]):
            words = span.split()
            command = words[0] if words[0] in COMMANDS else "mt-train"
            for option in (word for word in words if word.startswith("--")):
                assert option in known.get(command, set()), f"{page.name}: {span}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_yaml_and_toml_on_a_page_can_be_read(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)


def test_each_plugin_of_the_tutorial_takes_six_commands() -> None:
    parts = (DOCS / "tutorial.md").read_text(encoding="utf-8").split("\n## ")
    counted = [
        re.findall(r"^(?!```)\S.*", "".join(re.findall(r"^```sh\n(.*?)^```$", part, re.M | re.S)), re.M)
        for part in parts
    ]
    assert [len(each) for each in counted] == [0, 6, 6, 0]


def test_each_reason_to_skip_is_used() -> None:
    used = {block.info.removeprefix("skip=") for page in PAGES for block in blocks(page) if "skip=" in block.info}
    assert used == set(SKIPPED)
