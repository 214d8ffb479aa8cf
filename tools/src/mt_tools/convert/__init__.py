"""Weights that move: from any format that a family reads, and from runs, to Hugging Face folders; deltas; vocabularies."""
