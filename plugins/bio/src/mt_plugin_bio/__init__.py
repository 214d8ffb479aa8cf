"""Encoders of DNA and proteins for mt-core."""
