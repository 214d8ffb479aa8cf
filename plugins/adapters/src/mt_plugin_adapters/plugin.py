"""Entry point of the adapters plugin: whatever has a folder in ``variants``. A new variant is a folder, and no line here."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from mt_core import AdapterComponent, hookimpl

from . import variants


@hookimpl
def mt_adapters() -> list[AdapterComponent]:
    folders = sorted(each.name for each in iter_modules(variants.__path__))
    return [import_module(f"{variants.__name__}.{name}").COMPONENT for name in folders]
