"""Measures the cost of listing a plugin: ``python -m mt_conformance.listing MODULE`` loads it as every command does, and prints JSON.

In a process of its own, where nothing of the plugin was imported before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mt_conformance import trainer
from mt_conformance.host import named_host, required_plugins
from mt_core.errors import OURS, MtError
from mt_core.plugins.host import Offer, PluginHost

HEAVY = frozenset(
    {
        *("torch", "transformers", "deepspeed", "datasets"),
        *("numpy", "pandas", "scipy", "pyarrow", "matplotlib", "tokenizers", "sentencepiece", "bitsandbytes"),
        *("tensorboard", "wandb", "mlflow", "fsspec"),
    }
)
"""Packages that no command may load before it needs them: seconds, or some tens of milliseconds each."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """``heavy``: package → where it was imported; ``helps``: component → the page of ``mt-train --help`` with it."""

    milliseconds: float
    packages: list[str]
    heavy: dict[str, str]
    helps: dict[str, str]
    error: str = ""


@cache
def listing_of(module: str) -> Listing:
    """List a plugin in a process of its own, once for each. Raises ``AssertionError`` when that process fails."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from mt_conformance import listing; listing.main({module!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"listing {module} in a process of its own failed:\n{done.stderr[-3000:]}"
    return Listing(**json.loads(done.stdout.splitlines()[-1]))


class Watch:
    """A finder that refuses heavy packages, and remembers who asked."""

    def __init__(self) -> None:
        self.heavy: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Record what is imported, as ``importlib`` calls it."""
        if name in HEAVY:
            frames = [each for each in traceback.extract_stack()[:-1] if "importlib" not in each.filename]
            self.heavy.setdefault(name, f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}")
            raise ImportError(f"{name} is not to be imported while plugins are listed")
        return None


def main(module: str) -> None:
    """Print the listing of a plugin as JSON."""
    PluginHost.of(required_plugins(module))  # what is built in, and what others bring, is not the plugin's
    watch, before, start = Watch(), set(sys.modules), time.process_time()
    sys.meta_path.insert(0, watch)
    host = named_host(module)
    milliseconds = (time.process_time() - start) * 1000
    plugin = host.plugins[-1]
    helps = {f"{offer.kind}/{offer.component.name}": _help(host, offer) for offer in plugin.offers}
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    own = {*sys.stdlib_module_names, *OURS, module.partition(".")[0]}
    packages = sorted(loaded - own)
    report = Listing(milliseconds=milliseconds, packages=packages, heavy=watch.heavy, helps=helps, error=plugin.error)
    print(json.dumps(asdict(report)))


def _help(host: PluginHost, offer: Offer) -> str:
    """The page as a user asks for it; empty for what is no choice of a run, such as pipeline layers, and without mt-train."""
    name = offer.qualified_name if offer.component.replaces else offer.component.name
    keys = host.kinds.keys_of_kinds
    if offer.kind not in keys or not trainer.is_installed():
        return ""
    chosen: dict[str, Any] = {name: {}} if host.kinds[offer.kind].slot == "many" else {"name": name}
    try:
        return trainer.help_text(host, {keys[offer.kind]: chosen})
    except MtError as error:
        return f"error: {error}"
