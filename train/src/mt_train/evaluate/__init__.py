"""How good a model is on rows."""
