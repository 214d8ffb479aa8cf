"""Objectives that learn from a teacher model."""
