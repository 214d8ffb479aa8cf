"""Components that the plugin offers, as data."""
