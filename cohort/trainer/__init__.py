"""The training step and what surrounds it: the loop, validation, checkpoints, the run folder."""
