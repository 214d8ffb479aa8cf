"""A model family in its own distribution. Read in this order: plugin, config, model."""
