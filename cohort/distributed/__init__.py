"""Replicas of the local classes on many devices. The only code that imports ray or torch.distributed."""
