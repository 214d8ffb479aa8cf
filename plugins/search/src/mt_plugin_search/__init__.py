"""Hyper-parameter search for mt-core, with Optuna: the command ``mt-search``, and ``search`` from Python."""

from __future__ import annotations

from .searching import Found, search
from .trials import Trial

__all__ = ["Found", "Trial", "search"]
