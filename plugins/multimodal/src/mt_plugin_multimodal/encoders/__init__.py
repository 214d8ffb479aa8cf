"""Encoders: a folder for each family, whose ``__init__`` has its components and imports no torch."""
