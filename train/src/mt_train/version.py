"""Versions, as commands say them with ``--version``."""

from __future__ import annotations

from mt_core.version import __version__ as core_version


def describe_version(distribution: str) -> str:
    """Return the text of ``--version`` for a command of ``distribution``: its version, and the core's below."""
    from importlib.metadata import version  # here: importing it takes a while, and other pages need none

    return f"{distribution} {version(distribution)} (mt-core {core_version})"
