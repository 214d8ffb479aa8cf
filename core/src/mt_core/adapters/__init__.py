"""The seam of adapters."""
