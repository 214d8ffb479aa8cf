"""Alarms of runs that learn from answers: ``conditions`` says when one is due, ``callback`` asks them all and says each once."""
