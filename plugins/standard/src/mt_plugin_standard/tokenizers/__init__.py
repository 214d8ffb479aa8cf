"""Built-in tokenizers: bytes, SentencePiece and Hugging Face."""
