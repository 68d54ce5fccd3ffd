"""Where keys and values live: slots of one preallocated tensor, the used ones always in front.

The engine keeps two stores. One has a slot per distinct *prompt*, computed once and read by all of its
samples; the other a slot per *row*, with what that row wrote after its prompt. Attention reads views of
both, so nothing is ever concatenated or copied per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Shape of one token's keys and values.

    Attributes:
        layers: attention layers.
        kv_heads: key/value heads per layer.
        key_dim: width of a key.
        value_dim: width of a value.
        dtype: of both.
        device: of both.
    """

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


class Owner(Protocol):
    """What holds a slot: the store writes its ``slot`` and reads nothing else."""

    slot: int


O = TypeVar("O", bound=Owner)  # noqa: E741

SMALLEST = (16, 64)
"""Slots, and tokens per slot, of the first allocation; each is doubled when it is outgrown."""


class SlotStore(Generic[O]):
    """Keys and values of up to ``slots`` runs of tokens.

    Memory grows by doubling and is kept, so that from the second training step on nothing is allocated.

    The used slots are always ``0 .. len(store)``: freeing one moves the last used slot into the hole.
    Attention can therefore read plain slices.

    Attributes:
        owners: who holds each used slot.
        lengths: tokens in each used slot.
        keys: # (layers, slots, kv_heads, capacity, key_dim)
        values: # (layers, slots, kv_heads, capacity, value_dim)
    """

    def __init__(self, geometry: Geometry, slots: int) -> None:
        self.geometry = geometry
        self.slots = slots
        self.owners: list[O] = []
        self.lengths: list[int] = []
        self.keys, self.values = self._allocate(min(SMALLEST[0], slots), SMALLEST[1])

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def capacity(self) -> int:
        """Tokens that fit into each slot without growing."""
        return self.keys.shape[3]

    def take(self, owner: O) -> None:
        """Gives ``owner`` an empty slot.

        Raises:
            IndexError: if all slots are used.
        """
        if len(self.owners) == self.slots:
            raise IndexError(f"all {self.slots} slots are used")
        allocated = self.keys.shape[1]
        if len(self.owners) == allocated:
            self._resize(min(2 * allocated, self.slots), self.capacity)
        owner.slot = len(self.owners)
        self.owners.append(owner)
        self.lengths.append(0)

    def free(self, owner: O) -> None:
        """Takes the slot of ``owner`` back; the last used slot moves into its place."""
        hole, last = owner.slot, len(self.owners) - 1
        moved, length = self.owners.pop(), self.lengths.pop()
        owner.slot = -1
        if hole != last:
            self.keys[:, hole, :, :length] = self.keys[:, last, :, :length]
            self.values[:, hole, :, :length] = self.values[:, last, :, :length]
            self.owners[hole], self.lengths[hole] = moved, length
            moved.slot = hole

    def clear(self) -> None:
        """Frees every slot; the memory stays."""
        for owner in self.owners:
            owner.slot = -1
        self.owners.clear()
        self.lengths.clear()

    def reserve(self, length: int) -> None:
        """Makes room for ``length`` tokens in each slot, doubling so that growth is rare."""
        capacity = self.capacity
        if length <= capacity:
            return
        while capacity < length:
            capacity *= 2
        self._resize(self.keys.shape[1], capacity)

    def _resize(self, slots: int, capacity: int) -> None:
        used, keys, values = len(self.owners), self.keys, self.values
        self.keys, self.values = self._allocate(slots, capacity)
        self.keys[:, :used, :, : keys.shape[3]] = keys[:, :used]
        self.values[:, :used, :, : values.shape[3]] = values[:, :used]

    def _allocate(self, slots: int, capacity: int) -> tuple[Tensor, Tensor]:
        g = self.geometry
        shape = (g.layers, slots, g.kv_heads, capacity)
        # Zeros, not whatever lies in memory: a masked position weighs 0, and 0 times NaN is NaN.
        return (
            torch.zeros(*shape, g.key_dim, dtype=g.dtype, device=g.device),
            torch.zeros(*shape, g.value_dim, dtype=g.dtype, device=g.device),
        )
