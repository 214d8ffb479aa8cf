"""Adapters for mt-core."""
