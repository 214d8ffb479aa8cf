"""Built-in datasets: the demo corpus, plain text files and JSON lines."""
