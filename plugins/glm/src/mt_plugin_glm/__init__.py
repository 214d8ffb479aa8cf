"""GLM-4 (0414) for mt-core."""
