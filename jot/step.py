"""What one denoising step knows: the record that proposals and exit rules read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from jot.kernels import Top2, top2


@dataclass
class Step:
    """One forward pass seen by the rules. Rows are the asked masked positions, ordered by slot, then position.

    Attributes:
        logits: float32 ``[rows, vocabulary]``, banned tokens at minus infinity, never tempered.
        slot, position: where each row stands on the canvas, ``[rows]``.
        in_block: rows of the current block (all rows where the rule asks for nothing else), bool ``[rows]``.
        masks: masked canvas positions before the step, bool ``[slots, length]``.
        resolved: prompt and decoded positions before the step, bool ``[slots, length]``.
        index: number of earlier forwards of the sample in each slot, ``[slots]``.
        share: share of the remaining masks that the schedule may reveal, ``[slots]`` (fractional schedules only).
        keys: 64-bit key of the sample in each slot, ``[slots]``.
        steps: configured number of denoising steps.
    """

    logits: Tensor
    slot: Tensor
    position: Tensor
    in_block: Tensor
    masks: Tensor
    resolved: Tensor
    index: Tensor
    share: Tensor
    keys: Tensor
    steps: int

    @cached_property
    def top(self) -> Top2:
        return top2(self.logits)

    def at(self, canvas: Tensor) -> Tensor:
        """Values of a ``[slots, length]`` tensor at the rows of the step."""
        return canvas[self.slot, self.position]

    def none(self) -> Tensor:
        """A selection of no row, bool ``[rows]``."""
        return torch.zeros_like(self.in_block)
