"""Phi-3 and 4 for mt-core."""
