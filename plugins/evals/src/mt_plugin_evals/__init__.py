"""Evaluations of language models, and metrics of their answers."""
