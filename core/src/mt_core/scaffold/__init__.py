"""Writes a new plugin: a distribution that can be installed, tested and published as it is, from templates of its kind."""

from mt_core.scaffold.distribution import Distribution, KindTemplate, draft, read_template

__all__ = ["Distribution", "KindTemplate", "draft", "read_template"]
