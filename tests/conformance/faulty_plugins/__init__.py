"""A plugin in which everything is wrong: one component for each check of the kit."""
