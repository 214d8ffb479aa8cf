"""Rewards of answers that a model writes."""
