"""Quantized frozen weights for mt-core."""
