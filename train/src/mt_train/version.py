"""Versions, as commands say them with ``--version``."""

from __future__ import annotations

from importlib.metadata import version

from mt_core.version import __version__ as core_version


def describe_version(distribution: str) -> str:
    """Return the text of ``--version`` for a command of ``distribution``: its version, and the core's below."""
    return f"{distribution} {version(distribution)} (mt-core {core_version})"
