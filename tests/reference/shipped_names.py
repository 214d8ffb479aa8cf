"""Names that each distribution of the repository offers, for the lines that install it (``mt_train.plugins.shipped``)."""

from __future__ import annotations

import json
from pathlib import Path

from mt_train.assemble.discovery import load_plugins
from mt_train.plugins.shipped import FILE

ROOT = Path(__file__).parents[2]
PATH = ROOT / "train/src/mt_train/plugins" / FILE
ALWAYS = {"mt-plugin-standard", "mt-train"}
"""Distributions that every run has."""


def content() -> str:
    """Return the file's content: names by kind and distribution, of all that is in the repository and need not be installed."""
    ours = {f"mt-plugin-{path.parent.name}" for path in ROOT.glob("plugins/*/pyproject.toml")} - ALWAYS
    host = load_plugins()
    table: dict[str, dict[str, list[str]]] = {}
    for kind in sorted(host.kinds):
        for offer in host.offers(kind):
            if (distribution := offer.plugin.distribution) in ours:
                table.setdefault(kind, {}).setdefault(distribution, []).append(offer.component.name)
    found = {kind: {name: sorted(each) for name, each in sorted(by.items())} for kind, by in table.items()}
    return json.dumps(found, indent=1) + "\n"
