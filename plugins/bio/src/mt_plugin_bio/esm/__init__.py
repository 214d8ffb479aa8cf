"""Transformers with rotary positions and norms before: ESM-2 (proteins) and Nucleotide Transformer v2 (DNA)."""
