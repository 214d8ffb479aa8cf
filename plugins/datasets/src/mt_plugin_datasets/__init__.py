"""Datasets for mt-core: formats, mixes, token files, and the classic sets by name."""
