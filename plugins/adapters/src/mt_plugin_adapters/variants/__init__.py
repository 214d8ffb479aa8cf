"""The variants: a folder each, whose ``__init__`` has ``COMPONENT`` and imports no torch."""
