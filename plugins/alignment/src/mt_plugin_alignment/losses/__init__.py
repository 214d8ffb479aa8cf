"""Losses of pairs: a module for each, with its formula, its options and its paper."""
