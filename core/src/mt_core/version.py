"""The release, and the contract that it keeps."""

from __future__ import annotations

__version__ = "0.1.0"
API_VERSION = 1
"""Number of the contract with plugins: it grows when something public goes, never when something comes."""
