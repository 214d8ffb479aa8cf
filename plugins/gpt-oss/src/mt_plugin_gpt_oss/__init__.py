"""gpt-oss for mt-core."""
