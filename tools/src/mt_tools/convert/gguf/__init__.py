"""A Hugging Face folder as one GGUF file, which llama.cpp and what is built on it read (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""
