"""Block-wise key and value caches (Wu et al. 2025, Fast-dLLM): prefix and dual, for batches of unequal prompts.

A block opens with a full forward that stores keys (before the rotary embedding) and values of every position.
Later steps of the block run on part of the canvas only and overwrite their own slots: "dual" on the block itself,
so what follows stays as it was when the block opened; "prefix" on everything from the block's start on.
"""

from __future__ import annotations

import torch
from torch import Tensor

MODES = ("prefix", "dual")


class KVCache:
    """Keys and values of every layer for all slots of a batch: per layer ``[slots, heads, length + 1, head_dim]``.

    The last column takes the writes of padding queries and is never read.
    """

    def __init__(self, slots: int, width: int):
        self.slots, self.width = slots, width
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def buffers(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        while len(self.keys) <= layer:
            shape = (self.slots, like.shape[1], self.width + 1, like.shape[3])
            self.keys.append(like.new_zeros(shape))
            self.values.append(like.new_zeros(shape))
        return self.keys[layer], self.values[layer]


class View:
    """One forward's access to the cache: the slots ``pick`` and, unless it is a full one, where its queries stand.

    Args:
        pick: slots of the batch rows, ``[batch]``.
        length: columns of the canvas that may be attended to.
        positions: canvas position of each query, ``[batch, queries]``; ``length`` and above is padding. None stands
            for a full forward.
        straight: whether ``pick`` counts 0, 1, ..., so that no slot need be copied to be read.
    """

    def __init__(self, cache: KVCache, pick: Tensor, length: int, positions: Tensor | None = None, straight=False):
        self.cache, self.pick, self.length = cache, pick, length
        self.rows = slice(0, len(pick)) if straight else pick
        self.positions = None if positions is None else positions.clamp(max=length - 1)
        self.target = None if positions is None else torch.where(positions < length, positions, cache.width)

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store this forward's keys and values; returns those of the whole canvas."""
        keys, values = self.cache.buffers(layer, key)
        if self.target is None:
            keys[self.rows, :, : self.length], values[self.rows, :, : self.length] = key, value
            return key, value
        slot = self.pick[:, None]
        keys[slot, :, self.target], values[slot, :, self.target] = key.transpose(1, 2), value.transpose(1, 2)
        return keys[self.rows, :, : self.length], values[self.rows, :, : self.length]
