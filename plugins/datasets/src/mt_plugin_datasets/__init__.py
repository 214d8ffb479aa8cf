"""Datasets for mt-core: formats, mixes, token files, and recipes for the classic sets."""
