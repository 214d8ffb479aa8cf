"""Media in rows: marks in texts, spans of samples, and what is read of them for a batch."""
