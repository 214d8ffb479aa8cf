"""A run on paper: what it would do and hold. Not on the path of a training."""
