"""Projectors: a folder each, whose ``__init__`` has its component and imports no torch."""
