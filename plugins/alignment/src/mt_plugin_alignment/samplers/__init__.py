"""Samplers: generate the answers that a run learns from."""
