"""What the plugin offers, as data."""
