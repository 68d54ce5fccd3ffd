"""Sampling: the event loop, the draws, the engines and the environments that call them."""
