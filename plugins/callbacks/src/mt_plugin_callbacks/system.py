"""``system.jsonl``: what the machine does beside the steps, from a thread that touches no torch."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import Field

from mt_core import CallbackContext, MtConfig, StepLines

from .accounting import resident_gib

Read = Callable[[], Mapping[str, float]]
"""Figures of one device, now."""


class SystemConfig(MtConfig):
    """Interval of the looks."""

    every_seconds: float = Field(10.0, ge=0.1, le=86_400, description="seconds between two looks at the machine")


class System:
    """Writes a line every few seconds, each rank into its own file: ``system.jsonl`` of rank 0, ``system-N.jsonl`` of rank N.

    A line has ``time`` (seconds since 1970), ``rank``, ``host`` and ``step`` (the last one finished); ``cpu`` (share of the machine's
    processors that work) and ``process_cpu`` (processors that this process keeps busy); ``memory_gib`` (of this process),
    ``memory_free_gib`` and ``disk_free_gib`` (of the run's folder); on an NVIDIA GPU, with
    mt-plugin-callbacks[gpu], ``gpu_use`` (share of the time),
    ``gpu_memory_gib``, ``gpu_watts`` and ``gpu_celsius``. What the system does not say is left out.
    """

    def __init__(self, config: SystemConfig) -> None:
        self._every = config.every_seconds
        self._step = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def on_run_start(self, context: CallbackContext) -> None:
        """Begin to look."""
        if context.output is None:
            return
        self._step = context.step
        rank = 0 if context.weights is None else context.weights.rank
        path = context.output / (f"system-{rank}.jsonl" if rank else "system.jsonl")
        lines = StepLines(path)
        lines.cut_back(sys.maxsize)  # of a run that was killed, half a line
        about = {"rank": rank, "host": socket.gethostname()}
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # as long as it is open, no other has its number
        work = (lines, about, path, folder, _gpu_reader())
        self._thread = threading.Thread(target=self._look, args=work, name="system", daemon=True)
        self._thread.start()

    def on_step_end(self, context: CallbackContext) -> None:
        """Note the step."""
        self._step = context.step

    def on_run_end(self, context: CallbackContext) -> None:
        """Look once more, and end the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5)

    def on_exception(self, context: CallbackContext) -> None:
        """End the thread."""
        self.on_run_end(context)

    def _look(self, lines: StepLines, about: Mapping[str, Any], path: Path, folder: int, gpu: Read) -> None:
        cpu, ended = _CpuClock(), False
        try:
            while not ended:
                ended = self._ended.wait(self._every)
                if not _is_at(folder, path.parent):  # it was removed or moved, and the run is about to say so
                    return
                figures = {**cpu.read(), **_memory(), "disk_free_gib": shutil.disk_usage(folder).free / 2**30, **gpu()}
                short = {name: round(value, 4) for name, value in figures.items()}
                lines.append([{"time": round(time.time(), 3), **about, "step": self._step, **short}])
            lines.close()
        finally:
            os.close(folder)


def _is_at(folder: int, path: Path) -> bool:
    """Return whether an open folder is still the one of this path."""
    try:
        return os.path.samestat(os.fstat(folder), os.stat(path))
    except FileNotFoundError:
        return False


def system_files(config: SystemConfig) -> tuple[str, ...]:
    """Return what it writes into a run's folder."""
    return ("system.jsonl", "system-*.jsonl")


class _CpuClock:
    """Processor time between two looks."""

    def __init__(self) -> None:
        self._last = self._now()

    def read(self) -> dict[str, float]:
        last, self._last = self._last, self._now()
        seconds, process, busy, whole = (now - before for now, before in zip(self._last, last, strict=True))
        figures = {"process_cpu": process / max(seconds, 1e-9)}
        return figures | ({"cpu": busy / whole} if whole > 0 else {})

    @staticmethod
    def _now() -> tuple[float, float, float, float]:
        """Return the clock, this process's time, and the busy and the whole time of all processors (proc(5), Linux only)."""
        busy = whole = 0.0
        try:
            ticks = [int(word) for word in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:9]]
        except (OSError, ValueError, IndexError):
            ticks = []
        if len(ticks) >= 5:
            whole = float(sum(ticks))
            busy = whole - ticks[3] - ticks[4]  # idle, and waiting for a disk
        return time.monotonic(), time.process_time(), busy, whole


def _memory() -> dict[str, float]:
    figures = {} if (resident := resident_gib()) is None else {"memory_gib": resident}
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):  # what a program can have, caches given up
                free = int(line.split()[1]) / 2**20
    except (OSError, ValueError):
        return figures
    return figures | {"memory_free_gib": free}


def _gpu_reader() -> Read:
    """Return what reads the device that this process trains on; torch is asked here, before the thread, which device that is."""
    import torch

    if not torch.cuda.is_available():
        return dict
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError:
        return dict
    identity = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(identity)
    except nvml.NVMLError:
        return dict
    return lambda: read_gpu(nvml, handle)


def read_gpu(nvml: Any, handle: Any) -> dict[str, float]:
    """Return what NVML says of a device; what it does not offer is left out."""
    asked: dict[str, Callable[[], float]] = {
        "gpu_use": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "gpu_memory_gib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30,
        "gpu_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "gpu_celsius": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    }
    figures = {}
    for name, read in asked.items():
        try:
            figures[name] = read()
        except nvml.NVMLError:
            continue
    return figures
