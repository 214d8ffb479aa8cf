"""Promises that every plugin must keep, as test classes that its author subclasses. Needs ``pip install mt-conformance``.

A class for each kind; a subclass says which component it is about, and pytest does the rest::

    class TestBits(BaseTaskPrintConformance):
        plugin = plugin
        name = "bits"

The names are in ``__init__.pyi``. A class is imported when it is asked for, so that the checks of a plugin's imports run without torch.
"""

from __future__ import annotations

from importlib.util import find_spec

from mt_core.errors import UsageError
from mt_core.lazy import importer, public_names


def _require_pytest(package: str, name: str) -> str:
    """Return the name. Raises ``UsageError`` for a public one where there is no pytest, which all of them need."""
    if name in public_names(__file__) and find_spec("pytest") is None:
        raise UsageError(
            f"{package}.{name} needs pytest, which is not installed. Install it: pip install mt-conformance"
        )
    return name


__getattr__ = importer(__name__, __file__, _require_pytest)
