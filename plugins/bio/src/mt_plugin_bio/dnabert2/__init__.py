"""DNABERT-2: a bidirectional transformer with ALiBi over byte pairs (https://arxiv.org/abs/2306.15006)."""
