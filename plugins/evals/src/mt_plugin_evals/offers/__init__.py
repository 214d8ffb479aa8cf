"""Declarations of what the plugin offers."""
