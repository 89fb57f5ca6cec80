"""What one denoising step knows: the record that proposals and exit rules read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from jot.sampler.kernels import Top2, top2

if TYPE_CHECKING:
    from jot.sampler.previous import Memory


class Proposal(NamedTuple):
    """Per row: the token the schedule would commit, what ranks it, and its probability when proposed; ``[rows]``."""

    token: Tensor
    rank: Tensor
    confidence: Tensor


@dataclass
class Step:
    """One forward pass seen by the rules. Rows are the asked masked positions, ordered by slot, then position.

    Attributes:
        logits: float32 or float64 ``[rows, vocabulary]``, banned tokens at minus infinity, never tempered.
        slot, position: where each row stands on the canvas, ``[rows]``.
        in_block: rows of the current block (all rows where the rule asks for nothing else), bool ``[rows]``.
        masks: masked canvas positions before the step, bool ``[slots, length]``.
        resolved: prompt and decoded positions before the step, bool ``[slots, length]``.
        index: number of earlier forwards of the sample in each slot, ``[slots]``.
        block_index: number of earlier forwards in the current block, ``[slots]``.
        share: how many of the block's masks the schedule may reveal, or which share of them, ``[slots]``.
        keys: 64-bit key of the sample in each slot, ``[slots]``.
        prompt, end: where the generated part starts and ends, ``[slots]``.
        homes: the batch row that each slot keeps for the whole run, ``[slots]``; rules file their memory by it.
        whole: whether the forward read the whole canvas; False within a cached block.
        steps: configured number of denoising steps.
        memory: what the rule remembers between steps of a run (``ExitRule.remember``).
        proposal: token and confidence of every row, set before the rule is called.
        void: whether the step will be taken again, bool ``[]``; then a rule must leave its memory as it was.
        kept: what is computed once a step, by whom it concerns.
        demoted: ids that the margin leaves out, ``[ids]``, or None.
    """

    logits: Tensor
    slot: Tensor
    position: Tensor
    in_block: Tensor
    masks: Tensor
    resolved: Tensor
    index: Tensor
    block_index: Tensor
    share: Tensor
    keys: Tensor
    prompt: Tensor
    end: Tensor
    homes: Tensor
    whole: bool
    steps: int
    memory: Memory | None = None
    proposal: Proposal | None = None
    void: Tensor | None = None
    kept: dict = field(default_factory=dict)
    demoted: Tensor | None = None

    @cached_property
    def top(self) -> Top2:
        return top2(self.logits)

    @cached_property
    def margin(self) -> Tensor:
        """Top-2 logit margin in nats, ``[rows]``."""
        return self.top.gap if self.demoted is None else top2(self.logits.index_fill(1, self.demoted, -torch.inf)).gap

    def at(self, canvas: Tensor) -> Tensor:
        """Values of a ``[slots, length]`` tensor at the rows of the step."""
        return canvas[self.slot, self.position]

    def none(self) -> Tensor:
        """A selection of no row, bool ``[rows]``."""
        return torch.zeros_like(self.in_block)
