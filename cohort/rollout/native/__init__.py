"""The embedded engine: continuous batching on the training model itself."""

from cohort.rollout.native.sampler import NativeSampler

__all__ = ["NativeSampler"]
