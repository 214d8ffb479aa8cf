"""Samplers: what writes the answers that are learned from."""
