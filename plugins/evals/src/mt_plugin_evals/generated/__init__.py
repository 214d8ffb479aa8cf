"""Evaluations that let the model write."""
