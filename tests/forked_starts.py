"""Starts of processes that are forked: ``subprocess.Popen`` asks a server (``fork_server.py``) for what it can start.

These are Python modules and scripts of ours, our commands, and pytest. What is forked is a child of the process that asks, as a real
start's would be: its pipes, signals, groups and exit codes are those of ``Popen`` itself. A process that asks has one server, which
its first start brings up; a command has one too, so that the ranks that it launches are forked.

A real start differs in seven ways. What libraries print when they are imported is not seen, and importing takes no time; all
forks of a server have the same hash seed; variables that are read at import must be those of the server, or the start is a real one;
a fork ends after its exit handlers, without taking its modules apart; and it waits for no disk, draws no loss curve and hashes the code
of this repository once. Tests of such things say
``@pytest.mark.real_start``.
Linux only, and only without a GPU: elsewhere every start is real.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import inspect
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("fork_server.py")

DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==")
"""A picture in the PNG format, of one white pixel."""

PRELOADED = (
    "mt_train.api",
    "mt_train.assemble.load",
    "mt_train.assemble.run",
    "mt_train.assemble.session",
    "mt_train.cli.launch",
    "mt_train.cli.train",
    "mt_tools.cli.checkpoint",
    "mt_tools.cli.eval",
    "mt_tools.cli.generate",
    "mt_tools.cli.report",
    "mt_plugin_llama.model",
    "PIL.Image",
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.PpmImagePlugin",
    "matplotlib.backends.backend_agg",
    "hypothesis",
    "matplotlib.figure",
    "numpy.ctypeslib",
    "pytest",
    "safetensors.torch",
    "tokenizers",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.utils.tensorboard",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
    "transformers.utils.chat_template_utils",
    "deepspeed",
    "deepspeed.comm.mori",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.moe.ep_repack",
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.ops.triton_ops",
    "deepspeed.runtime.pipe.engine",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)
"""What commands import, beside plugins; one that is not installed is left out."""

FORKED = (
    "mt_core.cli.",
    "mt_train.",
    "mt_tools.",
    "mt_plugin_search.",
    "mt_plugin_serve.",
    "mt_conformance.worker",
    "pytest",
)
"""Where the names of modules begin that ``python -m`` is forked with."""

READ_AT_IMPORT = (
    *("ATEN_", "CUDA_", "DEEPSPEED_", "DS_", "GOMP_", "HF_", "HUGGINGFACE_", "KMP_", "LC_", "LD_"),
    *("MALLOC_", "MKL_", "MPL", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TOKENIZERS_"),
    *("TORCH", "TRANSFORMERS_", "TRITON_", "XDG_"),
)
"""Where the names of environment variables begin that somebody reads once, when Python starts or a library is imported."""

OF_THE_SERVER = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000", "DS_ACCELERATOR": "cpu"}
"""Where the environment does not say: what the tests' launches ask for, and what commands set before they import."""

READ_LATER = (
    *("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "GOMP_SPINCOUNT", "PYTHONPATH", "TOKENIZERS_PARALLELISM"),
    # Libraries set these in a process of tests that imports them: lm_eval, scikit-learn and torch.
    *("HF_XET_HIGH_PERFORMANCE", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
    *("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH"),
)
"""Variables that may differ all the same: ``PYTHONPATH`` is followed, and with one thread and no GPU the others change nothing."""

USUAL = {
    "shell": False,
    "preexec_fn": None,
    "close_fds": True,
    "executable": None,
    "gid": None,
    "gids": None,
    "uid": None,
}
"""Arguments of ``Popen`` that a forked start has as they are by default."""

MUST_BE_REAL = sys.platform != "linux" or os.path.exists("/dev/nvidiactl")
PR_SET_CHILD_SUBREAPER = 36
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)


@dataclass(frozen=True)
class Interpreter:
    """Whose starts are forked: a Python, what ``-m`` may name, and what its server has imported, plugins that are found apart."""

    python: str = sys.executable
    modules: tuple[str, ...] = FORKED
    imported: tuple[str, ...] = PRELOADED


_popen_signature = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_really_execute: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def import_time_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a fork cannot follow."""
    return {
        name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT) and name not in READ_LATER
    }


def paths_of(environment: Mapping[str, str], folder: str) -> list[str]:
    """The folders of ``PYTHONPATH``, for a process that starts in ``folder``."""
    return [os.path.join(folder, each) for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


class Client:
    """The side of a fork server that asks. Belongs to the process that made it."""

    def __init__(self, connection: socket.socket, server: subprocess.Popen[bytes] | None = None) -> None:
        self._connection, self._server = connection, server
        self._owner, self._lock = os.getpid(), threading.Lock()

    @classmethod
    def launch(cls, environment: Mapping[str, str], python: str = sys.executable) -> Client:
        """The client of a new server of this Python. It is in a group of its own: the Ctrl-C of a terminal is not for it."""
        ours, its = socket.socketpair()
        with its:
            # Nothing that could be sought in: Python asks but once what its streams are.
            quiet: dict[str, Any] = {"stdin": its, "stdout": its, "stderr": subprocess.PIPE}
            server = subprocess.Popen([python, str(SERVER)], env=environment, process_group=0, **quiet)
        return cls(ours, server)

    def is_mine(self) -> bool:
        """Whether children of the server become this process's: not in a fork of the process that made it."""
        return self._owner == os.getpid()

    def start(self, request: Mapping[str, Any], handles: list[int]) -> int:
        """The process id of a new child of this process."""
        content = json.dumps(request).encode()
        with self._lock, adopt_orphans():
            socket.send_fds(self._connection, [len(content).to_bytes(4, "little")], handles)
            self._connection.sendall(content)
            answer = self._connection.recv(4, socket.MSG_WAITALL)
        if len(answer) < 4:
            said = self._server.communicate()[1].decode(errors="replace") if self._server else ""
            raise RuntimeError(f"the fork server of the tests has ended. It said:\n{said}")
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """Let the server end."""
        self._connection.close()
        if self._server is not None:
            self._server.communicate()


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Inside, this process becomes the parent of its descendants' orphans, as the fork of a fork is (prctl(2))."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Starts:
    """Decides for each ``Popen`` of this process whether it is forked. ``real``: none is."""

    def __init__(
        self, client: Client | None = None, *, real: bool = False, interpreter: Interpreter | None = None
    ) -> None:
        self._client, self.real = client, real
        self._interpreter = interpreter or Interpreter(imported=(*PRELOADED, *_plugins()))
        self._began = import_time_environment(os.environ)
        self._environment = {**OF_THE_SERVER, **os.environ}
        self.fixed = import_time_environment(self._environment)
        self._own_paths = {os.path.realpath(path) for path in sys.path}
        self.count = {"forked": 0, "real": 0}

    def execute(self, process: Any, *arguments: Any) -> None:
        """``Popen._execute_child``."""
        given = _popen_signature.bind(process, *arguments).arguments
        request = None if self.real else describe(given, self._interpreter)
        if request is None or not self._is_served(request):
            self.count["real"] += 1
            _really_execute(process, *arguments)
            return
        self.count["forked"] += 1
        handles = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        handles = [own if handle == -1 else handle for own, handle in enumerate(handles)]
        process.pid = self._server().start(request, [*handles, *request["passed"]])
        process._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        process._close_pipe_fds(*(given[name] for name in pipes))

    def drift(self) -> list[str]:
        """Variables that make every start a real one, because this process has others than when it began."""
        now = import_time_environment(os.environ)
        return sorted(name for name in {*now, *self._began} if now.get(name) != self._began.get(name))

    @contextmanager
    def all_real(self, really: bool) -> Iterator[None]:
        """Inside, every start is real, if ``really``."""
        before, self.real = self.real, self.real or really
        try:
            yield
        finally:
            self.real = before

    def close(self) -> None:
        """From now on, every start is real."""
        self.real = True
        if self._client is not None and self._client.is_mine():
            self._client.close()

    def _is_served(self, request: Mapping[str, Any]) -> bool:
        environment = request["environment"]
        if import_time_environment(environment) != self.fixed or (self._client and not self._client.is_mine()):
            return False
        folders = [request["first_path"], *paths_of(environment, request["folder"])]
        foreign = [folder for folder in folders if os.path.realpath(folder) not in self._own_paths]
        return not any(shadows(folder, self._interpreter.imported) for folder in foreign)

    def _server(self) -> Client:
        if self._client is None:
            with self.all_real(True):
                self._client = Client.launch(self._environment, self._interpreter.python)
        return self._client


def describe(given: Mapping[str, Any], interpreter: Interpreter) -> dict[str, Any] | None:
    """The request for a start that ``Popen`` was asked for; nothing for one that has to be real."""
    if any(given[name] != usual for name, usual in USUAL.items()) or isinstance(given["args"], str | bytes):
        return None
    words = [os.fsdecode(word) for word in given["args"]]
    environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (given["env"] or os.environ).items()}
    folder = os.path.abspath(os.fsdecode(given["cwd"] or os.getcwd()))
    what = program(words, environment, folder, interpreter)
    if what is None or not os.path.isdir(folder) or not all(map(is_open, range(3))):
        return None
    return {
        **what,
        "words": words,
        "environment": environment,
        "folder": folder,
        "first_path": folder if "module" in what else os.path.dirname(os.path.realpath(what["script"])),
        "parent": os.getpid(),
        "group": given["process_group"] if given["process_group"] != -1 else os.getpgrp(),
        "session": given["start_new_session"],
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "limits": {number: resource.getrlimit(number) for number in LIMITS},
        "umask": given["umask"],
        "passed": [int(handle) for handle in given["pass_fds"]],
    }


def program(
    words: list[str], environment: Mapping[str, str], folder: str, interpreter: Interpreter
) -> dict[str, Any] | None:
    """The module or the script that a command runs, and its ``sys.argv``; nothing where it is not one of ours."""
    if words[0] != interpreter.python:
        name = os.path.basename(words[0])
        script = os.path.join(sysconfig.get_path("scripts"), name)
        found = words[0] if os.sep in words[0] else _find(name, environment)
        ours = name.startswith("mt-") and found == script and os.path.exists(script)
        return {"script": script, "argv": [script, *words[1:]]} if ours else None
    if words[1:2] == ["-m"] and words[2:]:
        ours = words[2].startswith(interpreter.modules)
        return {"module": words[2], "argv": ["-m", *words[3:]]} if ours else None
    script = os.path.join(folder, words[1]) if words[1:] else ""
    ours = script.endswith(".py") and Path(script).is_relative_to(Path(__file__).parent) and os.path.exists(script)
    return {"script": script, "argv": words[1:]} if ours else None


def _find(name: str, environment: Mapping[str, str]) -> str | None:
    """Where PATH has a command."""
    places = (os.path.join(folder, name) for folder in environment.get("PATH", "").split(os.pathsep))
    return next((place for place in places if os.path.exists(place)), None)


def shadows(folder: str, imported: tuple[str, ...]) -> bool:
    """Whether something there stands before a module that the server has imported, or is run when Python starts."""
    names = (*imported, "mt_core", "sitecustomize", "usercustomize")
    with suppress(OSError):
        found = {name.removesuffix(".py") for name in os.listdir(folder)}
        return not found.isdisjoint(name.partition(".")[0] for name in names)
    return False


@functools.cache
def _plugins() -> list[str]:
    """Modules of the plugins that are installed."""
    return [point.module for point in entry_points(group="mt_core.plugins")]


def skip_costly_parts() -> None:
    """From now on, this process leaves out what every run does and few tests look at."""
    skip_fsync()
    remember_code()
    skip_loss_curves()


def skip_fsync() -> None:
    """From now on, nothing of this process waits until what it wrote is on the disk: no test cuts the power.

    Two steps of training wait 27 times. That they do, and in which order, is tested where ``os.fsync`` is replaced once more.
    """

    def fsync(file: Any) -> None:
        os.fstat(file if isinstance(file, int) else file.fileno())  # as of the real one, ``OSError`` for what is closed

    os.fsync = fsync


def remember_code() -> None:
    """From now on, this process reads the code of this repository once for all runs: no test changes it.

    Each run hashes it twice, for a tenth of the time of two steps. Copies of it, and what tests write, are read anew.
    """
    with suppress(ModuleNotFoundError):  # where only the core is installed
        lock = importlib.import_module("mt_train.plugins.lock")
        lock.code_hash = _keep_hashes(lock.code_hash)


def _keep_hashes(hash_code: Callable[..., str]) -> Callable[..., str]:
    known: dict[tuple[str, ...], str] = {}

    @functools.wraps(hash_code)
    def code_hash(*modules: str) -> str:
        folders = [_own_folder(top) for top in dict.fromkeys(module.partition(".")[0] for module in modules)]
        if None in folders:
            return hash_code(*modules)
        if (key := tuple(map(str, folders))) not in known:
            known[key] = hash_code(*modules)
        return known[key]

    return code_hash


def _own_folder(package: str) -> str | None:
    """The folder of a package of this repository; nothing of any other."""
    module = sys.modules.get(package) or importlib.util.find_spec(package) if package else None
    places = getattr(module, "__path__", None) or getattr(module, "submodule_search_locations", None) or ()
    own = [place for place in places if Path(place).is_relative_to(SERVER.parents[1])]
    return own[0] if len(own) == len(list(places)) == 1 else None


def skip_loss_curves() -> None:
    """From now on, a run of this process has a dot for its loss curve, whose drawing is a tenth of the time of two steps.

    The curve is tested by itself (``train/tracking``), with the real starts of ``integration/test_first_run.py`` and by pages that show it.
    """
    with suppress(ModuleNotFoundError):
        recorder = importlib.import_module("mt_train.tracking.recorder")
        recorder.plot_losses = _draw_dot


def _draw_dot(records: Sequence[Mapping[str, Any]], path: Path, *, unit: str = "") -> None:
    if any(record.get("loss") is not None for record in records):
        path.write_bytes(DOT)


def is_open(handle: int) -> bool:
    try:
        os.fstat(handle)
    except OSError:
        return False
    return True


def install(client: Client | None = None) -> Starts:
    """From now on, ``subprocess.Popen`` of this process has the server start what it can."""
    starts = Starts(client, real=MUST_BE_REAL)
    _use(starts)
    return starts


@contextmanager
def asking(starts: Starts) -> Iterator[Starts]:
    """Inside, these are asked instead."""
    before = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    _use(starts)
    try:
        yield starts
    finally:
        subprocess.Popen._execute_child = before  # type: ignore[attr-defined]


def _use(starts: Starts) -> None:
    def execute(process: Any, *arguments: Any) -> None:
        starts.execute(process, *arguments)

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
