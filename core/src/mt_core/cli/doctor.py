"""``mt-plugins doctor``: what this machine and environment are, as text to paste into an issue."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Container, Iterator, Mapping
from importlib.metadata import Distribution
from typing import Any

from mt_core.cli.plugins import answer
from mt_core.config.secrets import HIDDEN, is_secret, redact
from mt_core.errors import ComponentError, show_value
from mt_core.plugins.compatibility import out_of_range
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import Selection
from mt_core.version import __version__

PACKAGES = (
    "torch",
    "deepspeed",
    "pluggy",
    "pydantic",
    "transformers",
    "sentencepiece",
    "safetensors",
    "tensorboard",
    "numpy",
    "huggingface_hub",
    "triton",
    "flash-attn",
)
VARIABLES = ("CUDA_", "NCCL_", "GLOO_", "OMP_", "MKL_", "TORCH", "DS_", "HF_", "MT_", "WORLD_SIZE", "RANK", "LOCAL_")

Section = dict[str, Any]
_OWN = ("system", "packages", "devices", "plugins", "environment")
"""Sections that are no plugin's."""


def run(arguments: argparse.Namespace) -> int:
    """``doctor``."""
    report = examine(PluginHost.discover(Selection.from_environment(arguments.block_plugin)))
    wrong = problems(report)
    answer(arguments, {"doctor": report, "problems": wrong}, lines(report))
    return int(bool(wrong))


def examine(host: PluginHost) -> dict[str, Section]:
    """Title → facts. What cannot be found out is a fact too."""
    environment = _environment(os.environ)  # first: DeepSpeed's import adds to it
    return {
        "system": _system(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": _devices(),
        **_of_plugins(host),
        "plugins": {plugin.info.label: _state(plugin) for plugin in host.plugins},
        "environment": environment,
    }


def problems(report: Mapping[str, Section]) -> list[str]:
    """Return what keeps a run from starting, with the fix."""
    found = [
        f"{name} is not installed: pip install mt-core"
        for name in ("torch", "pydantic", "safetensors")
        if report["packages"][name] == "not installed"
    ]
    if sys.platform == "win32":
        found.append("Windows: training runs in WSL 2; mt-plugins and mt-report run here too")
    wrong = {name: state for name, state in report["plugins"].items() if state.startswith(("failed", "misfit"))}
    found += [f"plugin {name}: {state}" for name, state in wrong.items()]
    own = [title for title in report if title not in _OWN and "error" in report[title]]
    return found + [f"{title}: {report[title]['error']}" for title in own]


def lines(report: Mapping[str, Section]) -> Iterator[str]:
    """The report as text."""
    for title, facts in report.items():
        yield f"{title}:"
        width = max((len(name) for name in facts), default=0)
        yield from (f"  {name:<{width}}  {value}" for name, value in facts.items())
    wrong = problems(report)
    yield "problems:"
    yield from (f"  {text}" for text in wrong or ["none"])


def _system() -> Section:
    compiler = next((path for name in ("c++", "g++", "clang++", "cl") if (path := shutil.which(name))), None)
    return {
        "mt-core": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})",
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "C++ compiler": compiler or "none (not needed, except by train.compile and offload on a CPU optimizer)",
        "scripts on PATH": sysconfig.get_path("scripts") in os.environ.get("PATH", "").split(os.pathsep),
    }


def _version(name: str) -> str:
    return next((found.version for found in Distribution.discover(name=name)), "not installed")


def _devices() -> Section:
    try:
        import torch
    except ImportError as error:
        return {"error": str(error)}
    facts: Section = {"torch threads": torch.get_num_threads()}
    facts["CUDA"] = torch.version.cuda or "torch is built without it"
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        facts[f"GPU {index}"] = (
            f"{about.name}, {about.total_memory / 2**30:.1f} GiB, compute {about.major}.{about.minor}"
        )
    if torch.cuda.device_count() == 0:
        facts["GPU"] = "none: runs train on the CPU"
    if getattr(torch.backends, "mps", None) is not None and torch.backends.mps.is_available():
        facts["Apple GPU"] = "there, and not used: runs train on the CPU"
    return facts


def _of_plugins(host: PluginHost) -> dict[str, Section]:
    """Sections that plugins offer (``mt_doctor``); one whose answer is none of its own has its name and the error there."""
    found: dict[str, Section] = {}
    for name, hook in host.doctors():
        try:
            found |= _check_sections(hook(), {*_OWN, *found})
        except Exception as error:  # noqa: BLE001 - a broken installation is what the doctor is asked about
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found


def _check_sections(sections: Any, taken: Container[str]) -> dict[str, Section]:
    """The sections of one plugin. Raises ``ComponentError`` for what is no title → facts, and for a title that is taken."""
    if not isinstance(sections, Mapping) or not all(isinstance(facts, Mapping) for facts in sections.values()):
        raise ComponentError(f"mt_doctor has to return title → facts (name → value), got {show_value(sections)}")
    for name in (*sections, *(name for facts in sections.values() for name in facts)):
        if not isinstance(name, str):
            raise ComponentError(f"mt_doctor has to name titles and facts by text, got {show_value(name)}")
    if title := next((title for title in sections if title in taken), None):
        raise ComponentError(f"mt_doctor offers the section {title!r}, which is another's; choose another title")
    return {title: dict(facts) for title, facts in sections.items()}


def _state(plugin: Any) -> str:
    if plugin.status == "loaded":
        count, misfit = len(plugin.offers), out_of_range(plugin.info)
        return f"misfit: {misfit}" if misfit else f"loaded, {count} component{'' if count == 1 else 's'}"
    return f"failed: {plugin.error}" if plugin.error else str(plugin.status)


def _environment(environment: Mapping[str, str]) -> Section:
    named = {name: value for name, value in sorted(environment.items()) if name.startswith(VARIABLES)}
    return {name: HIDDEN if _is_hidden(name, value) else value for name, value in named.items()} or {"none": "set"}


def _is_hidden(name: str, value: str) -> bool:
    """Return whether a variable holds a secret, however short; a switch (``HF_HUB_DISABLE_IMPLICIT_TOKEN=1``) is none."""
    return redact(value) != value or (is_secret(name, value) and not value.isdecimal())
