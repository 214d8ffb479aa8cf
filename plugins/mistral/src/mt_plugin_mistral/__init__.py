"""Mistral, Ministral and Mixtral for mt-core."""
