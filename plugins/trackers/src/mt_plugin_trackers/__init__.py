"""Trackers for mt-core."""
