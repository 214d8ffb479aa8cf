"""Media in rows: files and content that rows name, marks in texts, spans of samples, and what is read of them for a batch."""
