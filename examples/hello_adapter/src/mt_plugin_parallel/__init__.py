"""An adapter in its own distribution. Read in this order: plugin, layer."""
