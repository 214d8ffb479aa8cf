"""Environment variables that have to be set before transformers is imported."""

from __future__ import annotations

import os


def forbid_fetched_kernels() -> None:
    """Keep transformers from fetching compiled code by name, as it does where the package ``kernels`` is installed."""
    os.environ["USE_HUB_KERNELS"] = "0"
