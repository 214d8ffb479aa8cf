"""Metrics: figures that compare predictions with references."""
