"""Building blocks for models and objectives; taking a name from here imports torch.

The names are in ``__init__.pyi``.
"""

from __future__ import annotations

from mt_core.deprecation import current_name
from mt_core.lazy import importer

__getattr__ = importer(__name__, __file__, current_name)
