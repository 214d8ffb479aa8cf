"""Writes a new plugin: a distribution that can be installed, tested and published as it is, from templates in this package."""

from mt_core.scaffold.distribution import Distribution, draft
from mt_core.scaffold.kinds import KINDS

__all__ = ["KINDS", "Distribution", "draft"]
