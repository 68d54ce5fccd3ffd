"""Grading finished trajectories. Everything a worker process imports here is free of torch."""
