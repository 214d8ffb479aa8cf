"""Hyper-parameter search for mt-core, with Optuna: the command ``mt-search``, and ``search`` from Python."""

from __future__ import annotations

from .searching import SearchResult, search
from .trials import Trial

__all__ = ["SearchResult", "Trial", "search"]
