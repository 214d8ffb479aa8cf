"""Rows in files, for datasets (which files, where each row lies in them, strict JSON), and files that a run writes.

Importing this imports no torch. The names are in ``__init__.pyi``.

Every fault is a ``DataError`` that names the file, the line where there is one, and what to do.
"""

from __future__ import annotations

from mt_core.deprecation import current_name
from mt_core.lazy import importer

__getattr__ = importer(__name__, __file__, current_name)
