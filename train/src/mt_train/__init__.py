"""Training: from a config and what plugins offer to a trained model. Importing it imports no torch.

Public are the names in ``__init__.pyi`` and ``mt_train.command``; the rest is private and may change.
"""

from __future__ import annotations

from mt_core.lazy import importer

__version__ = "0.1.0"

__getattr__ = importer(__name__, __file__)
