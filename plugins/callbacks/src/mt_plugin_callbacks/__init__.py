"""Callbacks and metric printers for mt-core."""
