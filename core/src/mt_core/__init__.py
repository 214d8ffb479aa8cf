"""The core of the framework: what plugins import. Importing it imports no torch.

Everything public is here (``__init__.pyi`` lists the names), in ``mt_core.nn`` and ``mt_core.adapters`` (torch), ``mt_core.files`` or
``mt_core.weights``; the rest is private and may change.
"""

from __future__ import annotations

from mt_core.deprecation import current_name
from mt_core.lazy import importer
from mt_core.version import API_VERSION as API_VERSION
from mt_core.version import __version__ as __version__

__getattr__ = importer(__name__, __file__, current_name)
