"""Puts a run together from what its config names."""
