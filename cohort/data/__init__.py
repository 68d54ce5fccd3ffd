"""Data files, prompts, their order, and the tokenizer."""
