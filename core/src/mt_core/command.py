"""Former place of what commands of plugins use."""

raise ImportError("mt_core.command is mt_train.command now: pip install mt-train", name=__name__)
