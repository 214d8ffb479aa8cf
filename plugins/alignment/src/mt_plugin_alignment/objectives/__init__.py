"""Objectives over preferences."""
