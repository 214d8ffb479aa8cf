"""Rows and tokenizers to train on, launches of several processes that train them, how far families are from their references, and the
order of tests that workers share.

Commands that tests start are forked from a server that has imported everything (``forked_starts.py``); a test of the start itself says
``@pytest.mark.real_start``."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: every core has a worker already
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import forked_starts
import liger_stand_ins
import tiers

pytest_plugins = ["mt_conformance.fixtures", "pytester"]

STARTS = pytest.StashKey[forked_starts.Starts]()
ENDS = pytest.StashKey[list[float]]()

PARITY_TABLE = "MT_PARITY_TABLE"
"""Environment variable: a file for the largest differences that the parity tests of all families have seen."""

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "it",
    "rests",
    "under",
    "an",
    "old",
    "tree",
    "until",
    "night",
    "falls",
]


ALONE = "MT_ALONE"
"""Environment variable: set where only one plugin is installed beside ours, on purpose (tests/alone). There, tests that need
another one are skipped; anywhere else they fail."""

KIT = {
    "METADATA": "Metadata-Version: 2.1\nName: kit\nVersion: 0.1.0\n",
    "entry_points.txt": "[mt_core.plugins]\nkit = mt_conformance.tiny\n",
}
"""What makes the kit's own tiny model an installed plugin."""


settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Plain ``pytest``, without files or folders, uses all cores where xdist is installed, if ``-n`` does not say otherwise."""
    option = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    alone = option.usepdb or option.trace or option.collectonly or hasattr(config, "workerinput")
    if whole and not alone and getattr(option, "numprocesses", 0) is None:
        option.numprocesses = "logical"


def piece(nodeid: str) -> str:
    """Return the group with which a test goes to a worker: its file, so that launches are shared, one of the folders above, or its page."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    if path == tiers.PAGES:
        return f"{path}[{nodeid.partition('[')[2]}"
    return next((folder for folder in tiers.TOGETHER if path.startswith(f"{folder}/")), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``pytest -n 2`` hands out pieces, in the order in which the workers have collected them."""
    from xdist.scheduler import LoadScopeScheduling

    class Pieces(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return piece(nodeid)

    config.option.loadscopereorder = False
    return Pieces(config, log)


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_mark_tiers(items: list[pytest.Item]) -> None:
    """Mark tests by ``tiers.py``, before a selection by marks is made."""
    for item in items:
        mark = tiers.tier(item.nodeid)
        if mark is not None and not any(item.get_closest_marker(rarer) for rarer in ("night", "soak")):
            item.add_marker(mark)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers collect the longest pieces first."""
    if not hasattr(config, "workerinput"):
        return
    files = {name.partition("::")[0] for name in (*tiers.LONGEST, *tiers.LONG, *tiers.NIGHT)}
    if gone := sorted(name for name in files if not (Path(__file__).parent / name).exists()):
        raise pytest.UsageError(f"tests/tiers.py names what does not exist: {gone}; mend LONGEST, LONG and NIGHT")
    rank = {name: number for number, name in enumerate(tiers.LONGEST)}
    items.sort(key=lambda item: rank.get(piece(item.nodeid).partition("[")[0], len(rank)))


class NeededByTests:
    """The last to be asked for a module: one of a plugin that is left out skips the test file, or the test, that imports it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith("mt_plugin_") and _importer().is_relative_to(Path(__file__).parent):
            skip_without(name.replace("_", "-"))


def _importer() -> Path:
    """The file with the import statement that is being carried out."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return Path(frame.f_code.co_filename)


def skip_without(distribution: str) -> None:
    """Skip what runs now where only one plugin is installed and this is not the one."""
    if ALONE in os.environ and distribution not in {each.name for each in distributions()}:
        pytest.skip(f"needs {distribution}", allow_module_level=True)


def pytest_configure(config: pytest.Config) -> None:
    """In an environment with one plugin, imports of others are looked after."""
    if ALONE in os.environ:
        sys.meta_path.append(NeededByTests)
    forked_starts.skip_costly_parts()
    config.stash[STARTS] = forked_starts.install()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The fork server ends."""
    config.stash[STARTS].close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells how it started what tests asked for."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["starts"] = session.config.stash[STARTS].count


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The numbers of a worker are added to those of the process that has workers, and it is kept when it ended."""
    node.config.stash.setdefault(ENDS, []).append(time.monotonic())
    for how, number in getattr(node, "workeroutput", {}).get("starts", {}).items():
        node.config.stash[STARTS].count[how] += number


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many commands were forked, and how many took the six seconds of a real start: pip, and what asks for it.

    Of workers, what lets one of them wait for another: how far apart they ended, and what is long and begun late.
    """
    count = config.stash[STARTS].count
    if any(count.values()):
        terminalreporter.write_line(f"starts of tests: {count['forked']} forked, {count['real']} real")
    if ends := config.stash.get(ENDS, []):
        terminalreporter.write_line(f"the last worker ended {max(ends) - min(ends):.0f} s after the first")
        if late := unnamed_files(report for reports in terminalreporter.stats.values() for report in reports):
            terminalreporter.write_line(f"long, and not in LONGEST of tests/tiers.py: {', '.join(late)}")


def unnamed_files(reports: Iterable[Any]) -> list[str]:
    """Files that took half a minute of a worker and are not in ``LONGEST``, the longest first."""
    seconds: Counter[str] = Counter()
    for report in reports:
        if isinstance(report, pytest.TestReport):
            seconds[piece(report.nodeid).partition("[")[0]] += report.duration
    return [
        f"{name} {taken:.0f} s" for name, taken in seconds.most_common() if taken > 30 and name not in tiers.LONGEST
    ]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """``@pytest.mark.real_start``: processes of this test start as a user's do."""
    with item.config.stash[STARTS].all_real(item.get_closest_marker("real_start") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After the last test, this process has the variables with which it began: others would have made all starts real ones."""
    yield
    drift = item.config.stash[STARTS].drift() if nextitem is None else []
    assert not drift, f"set for good by a test or an import: {', '.join(drift)}; see READ_LATER in forked_starts.py"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``@pytest.mark.needs("mt-plugin-llama")`` for what names another distribution's component."""
    for mark in item.iter_markers("needs"):
        skip_without(*mark.args)


@pytest.fixture(scope="session")
def needs() -> Callable[[str], None]:
    """``needs("mt-plugin-llama")``: the same in a fixture."""
    return skip_without


@pytest.fixture(scope="session")
def kit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that, on the path, makes ``--model kit-tiny`` a model that is installed."""
    folder = tmp_path_factory.mktemp("kit")
    (folder / "kit-0.1.0.dist-info").mkdir()
    for name, content in KIT.items():
        (folder / "kit-0.1.0.dist-info" / name).write_text(content)
    return folder


@pytest.fixture
def kit_model(kit_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside, also for processes that a test starts, ``kit-tiny`` is a model: for tests that need some model."""
    monkeypatch.syspath_prepend(str(kit_folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(kit_folder), os.environ.get("PYTHONPATH")])))


def pytest_collection_finish() -> None:
    """What is imported by now need not be looked through again: every start of DeepSpeed collects garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of very different lengths, some nearly all prompt."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = []
    for number in range(40):
        prompt, response = WORDS[: 1 + number % 5], WORDS[number % 3 : number % 3 + 1 + (number * 7) % 5]
        text = " ".join(prompt + response)
        lines.append(json.dumps({"prompt": " ".join(prompt), "response": " ".join(response), "text": text}))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="session")
def train_sentencepiece() -> Any:
    """``train_sentencepiece(file, texts, size)``: a model as Llama's: byte fallback, nothing normalised away, no padding token."""

    def train(file: Path, texts: Iterable[str], size: int) -> Path:
        import sentencepiece

        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
        file.write_bytes(model.getvalue())
        return file

    return train


@pytest.fixture(scope="session")
def launch(rows: Path) -> Callable[..., dict[str, Any]]:
    """``launch(worker, world, folder, cases)``: a worker (its path below tests) in so many processes, and what it wrote."""

    def launched(worker: str, world: int, folder: Path, cases: dict[str, Any], timeout: int = 1700) -> dict[str, Any]:
        out, script = folder / f"results-{world}.json", Path(__file__).parent / worker
        command = [sys.executable, str(script), json.dumps(cases), str(rows), str(out)]
        base = {**os.environ, "WORLD_SIZE": str(world), "MT_STORE": str(folder / f"store-{world}")}
        # Without LOCAL_SIZE, DeepSpeed starts a program to count processors in every backward pass of ZeRO 3 on a CPU.
        base |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "LOCAL_SIZE": str(world)}
        processes = [
            subprocess.Popen(
                command,
                env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(world)
        ]
        try:
            said = [[text.decode()[-3000:] for text in process.communicate(timeout=timeout)] for process in processes]
        finally:
            for process in processes:
                process.kill()  # one that a busy machine, or a fault, keeps from its end
        assert all(process.returncode == 0 for process in processes), "\n".join(errors for _, errors in said)
        assert not any(output for output, _ in said), f"DeepSpeed printed: {said}"
        return json.loads(out.read_text())

    return launched


@pytest.fixture
def liger_formulas(monkeypatch: pytest.MonkeyPatch) -> type[liger_stand_ins.Turn]:
    """Modules of Liger's names, with formulas in the place of kernels; returns what turns."""
    for name, module in liger_stand_ins.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return liger_stand_ins.Turn


@pytest.fixture(scope="session")
def distance() -> Callable[[Tensor, Tensor], float]:
    return lambda ours, theirs: ((ours - theirs).norm() / theirs.norm()).item()


@pytest.fixture(scope="session")
def record() -> Iterator[Callable[[str, str, str, float, float], None]]:
    """``record(family, model, input, logits, gradients)``: one line of the parity table."""
    lines: list[str] = []

    def add(family: str, model: str, given: str, logits: float, gradients: float) -> None:
        lines.append(f"| {family} | {model} | {given} | {logits:.1e} | {gradients:.1e} |")

    yield add
    if PARITY_TABLE in os.environ and lines:
        head = ["| family | model | input | logits | gradients |", "|---|---|---|---|---|"]
        Path(os.environ[PARITY_TABLE]).write_text("\n".join([*head, *lines]) + "\n")
