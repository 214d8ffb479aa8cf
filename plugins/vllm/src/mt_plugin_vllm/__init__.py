"""Answers that a vLLM server writes."""
