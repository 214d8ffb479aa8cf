"""Folders of weights as Hugging Face writes them, for families: read without executing anything.

Importing this imports no torch; every fault is a ``WeightsError`` that names the file and what to do. The names are in ``__init__.pyi``.
"""

from __future__ import annotations

from mt_core.deprecation import current_name
from mt_core.lazy import importer

__getattr__ = importer(__name__, __file__, current_name)
