"""Built-in objectives: next-token prediction on whole texts, and on responses to prompts."""
