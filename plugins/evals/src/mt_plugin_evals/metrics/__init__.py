"""Metrics: figures of predictions beside what was expected."""
