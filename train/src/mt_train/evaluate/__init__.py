"""Evaluation of a model on rows."""
