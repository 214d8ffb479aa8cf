"""Optimizers and schedules for mt-core."""
