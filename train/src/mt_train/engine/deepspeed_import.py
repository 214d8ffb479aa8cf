"""The import of DeepSpeed, here and nowhere earlier: it chooses its device at import, prints to standard output, imports what only its
own commands need, and on a CPU would compile an operator that needs a C++ compiler (gloo's own collectives need none).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

from mt_core.tracking.logs import for_the_file


def import_deepspeed(device: torch.device) -> ModuleType:
    """Import DeepSpeed for this device, quietly and without its compiled CPU collectives."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    _show_scripts()
    with redirect_prints(), warnings.catch_warnings(), _hide_module("mlflow"):
        warnings.simplefilter("ignore")
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        import deepspeed
        from deepspeed.utils import logger

        _import_muon()
    logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed  # type: ignore[no-any-return]


def _import_muon() -> None:
    """DeepSpeed's Muon, which every start above ZeRO 0 imports to ask whether it is the optimizer, and which then imports torch's
    compiler for one function: 3.6 s and 115 MiB a process. Ours is another, so nobody calls that function.
    """
    compile_for_real = torch.compile
    torch.compile = lambda *arguments, **options: lambda function: function  # type: ignore[assignment]
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        torch.compile = compile_for_real


@contextlib.contextmanager
def _hide_module(name: str) -> Iterator[None]:
    """Let a module that nobody has imported seem not to be installed: DeepSpeed's autotuner imports MLflow, with pandas, where it is.
    That takes 2 s of processor time and 8 of waiting, and starts a thread; no run uses the autotuner.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # as the import system has it
    try:
        yield
    finally:
        del sys.modules[name]


@contextlib.contextmanager
def redirect_prints() -> Iterator[None]:
    """Send what DeepSpeed prints to the run's log: standard output is for what a command was asked for."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield
    finally:
        if text := said.getvalue().strip():
            for_the_file(text, logging.DEBUG)


def _show_scripts() -> None:
    """Put this environment's scripts on the PATH: DeepSpeed looks for ``ninja`` there, also when nobody activated it."""
    scripts = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if scripts not in path.split(os.pathsep):
        os.environ["PATH"] = f"{scripts}{os.pathsep}{path}" if path else scripts
