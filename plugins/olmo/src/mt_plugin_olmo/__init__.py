"""OLMo 2 and 3 for mt-core."""
