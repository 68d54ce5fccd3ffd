"""Hugging Face models as policies: build, forward (log-probs, packing, shared prompts), objective, optimiser."""
