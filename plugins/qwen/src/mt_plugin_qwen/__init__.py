"""Qwen 2.5 and Qwen 3 (dense) for mt-core."""
