"""Blocks that adapters are made of, beside ``mt_core.Adapter`` and their configs; taking a name from here imports torch.

The names are in ``__init__.pyi``.
"""

from __future__ import annotations

from mt_core.deprecation import current_name
from mt_core.lazy import importer, public_names

_NAMES = public_names(__file__)

__all__ = list(_NAMES)

__getattr__ = importer(__name__, _NAMES, current_name)
