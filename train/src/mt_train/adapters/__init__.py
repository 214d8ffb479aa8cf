"""Adapters as folders, and several of them on one model."""
