"""Mistral and Ministral for mt-core."""
