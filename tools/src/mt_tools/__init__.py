"""The commands around training; for Python, text, figures and folders of weights that are written. Importing it imports no torch.

The names are in ``__init__.pyi``.
"""

from __future__ import annotations

from mt_core.lazy import importer

__version__ = "0.1.0"

__getattr__ = importer(__name__, __file__)
