"""Every adapter that there is, found by discovery, and what its own test file tells the suite.

``tests/adapters/test_NAME.py`` may have these literals: ``SMALL`` (options for a tiny model), ``EXACT_WITHIN`` (how far an adapter
with ``exact_at_init=False`` begins from its base, as a share of its output), ``LAYOUTS_WITHIN`` (how far layouts may be apart,
relative, where a method enlarges rounding), ``FURTHER`` (label → options beside ``SMALL``, with which it is trained and resumed as well),
``LEARNING`` (``margin``, ``rate``, ``schedule`` and ``options``
of its 200 steps: see learning.py) and ``EXPECTED_FAILURES`` (name of a test → why it fails; strict, and said in docs/adapters.md).
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from mt_conformance import hermetic_host
from mt_core import Adapter, AdapterComponent
from mt_core.nn import TrainModel
from mt_core.plugins.host import PluginHost
from mt_plugin_adapters import plugin as adapters
from mt_plugin_llama import plugin as llama
from mt_plugin_llama.config import LlamaConfig
from mt_plugin_llama.model import Llama
from mt_plugin_optim import plugin as optim
from mt_plugin_quantizers import plugin as quantizers
from mt_plugin_standard import plugin as builtin

HERE = Path(__file__).parent
DEFAULT = {"rank": 4}
TINY = {"vocab_size": 259, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}
"""The shape that everything here is small on."""
WHOLE = "full"
"""The adapter that adapts nothing: what the others are beside it."""


@cache
def modules() -> dict[str, ModuleType]:
    """Adapter → the module of hooks that offers it."""
    return {each.name: module for module in (builtin, adapters) for each in module.mt_adapters() if each.name != WHOLE}


@cache
def components() -> dict[str, AdapterComponent]:
    """By name."""
    return {each.name: each for module in (builtin, adapters) for each in module.mt_adapters() if each.name != WHOLE}


def constant_of(name: str, constant: str, default: Any) -> Any:
    """A constant of ``test_NAME.py`` beside this file, which is read and not run: its other imports take seconds."""
    literal = _constants(name).get(constant)
    return default if literal is None else ast.literal_eval(literal)


@cache
def _constants(name: str) -> dict[str, ast.expr]:
    """Name → value as it is written, of all that an adapter's test file assigns."""
    path, found = HERE / f"test_{name.replace('-', '_')}.py", {}
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                found[target.id] = node.value
    return found


def small_options(name: str) -> dict[str, Any]:
    """Options for a tiny model: ``SMALL`` of its test, else a small rank where it has one."""
    fits = "rank" in components()[name].config.model_fields
    return dict(constant_of(name, "SMALL", DEFAULT if fits else {}))


def further_options() -> dict[str, tuple[str, dict[str, Any]]]:
    """Adapter and label → the adapter and its options, for all that a test file has in ``FURTHER``."""
    return {
        f"{name} {label}": (name, {**small_options(name), **options})
        for name in components()
        for label, options in constant_of(name, "FURTHER", {}).items()
    }


def in_tiny_llama(name: str) -> tuple[Adapter, TrainModel, set[str]]:
    """An adapter in a model without memory, and the names that the model had before."""
    component = components()[name]
    with torch.device("meta"):
        model = Llama(LlamaConfig(**TINY, max_seq_len=8))
        base = {each for each, _ in model.named_parameters()}
        adapter: Adapter = component.build(component.config(**small_options(name)))
        adapter.inject(model)
    return adapter, model, base


def host_of(module: ModuleType) -> PluginHost:
    """The built-ins, Llama, schedules, quantizers and all adapters; the one that is tested comes last, as the kit expects it."""
    host = hermetic_host(llama, optim, quantizers, adapters)
    host.plugins.sort(key=lambda plugin: plugin.info.module == module.__name__)
    return host


def expected_failures(name: str) -> dict[str, str]:
    """Test → why it fails."""
    return dict(constant_of(name, "EXPECTED_FAILURES", {}))


def expect(request: pytest.FixtureRequest, name: str) -> None:
    """Mark a test that is known to fail, so that it does so for certain."""
    reason = expected_failures(name).get(request.node.originalname)
    if reason:
        request.node.add_marker(pytest.mark.xfail(strict=True, reason=reason))
