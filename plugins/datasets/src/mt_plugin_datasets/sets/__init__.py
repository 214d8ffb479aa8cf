"""The classic sets by name: what a row of each looks like, as data."""
