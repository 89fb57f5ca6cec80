"""What rules remember between steps: KLASS each position's logits when it was last read, SchED the token that led
there, CreditDecoding all that have led at each position of the block."""

from __future__ import annotations

import torch
from torch import Tensor

from jot.sampler.step import Step


class Memory:
    """What a rule keeps between steps; nothing of it changes in a step that is void."""

    state: list[Tensor]  # every tensor that a step writes


class Previous(Memory):
    """The logits that each generated position had when a step last read it, and its divergences until then.

    Args:
        samples: batch rows that a run has.
        width: of their canvases.
        history: divergences kept a position.
        room: generated positions of all samples, and vocabulary.
        dtype: of the logits.
    """

    def __init__(self, samples: int, width: int, history: int, device, room: tuple[int, int], dtype: torch.dtype):
        self.seen = torch.full((samples, width), -2, dtype=torch.long, device=device)  # by which of a sample's forwards
        self.past = torch.zeros(samples, width, history, dtype=torch.float64, device=device)
        self.logits = torch.empty(room[0] + 1, room[1], dtype=dtype, device=device)  # the last row is never read
        self.state = [self.seen, self.past, self.logits]

    def place(self, step: Step, position: Tensor) -> Tensor:
        """The row of ``logits`` that belongs to each row of the step: the last one outside the generated part."""
        offset, length = position - step.prompt[step.slot], (step.end - step.prompt)[step.slot]
        return torch.where(offset < 0, len(self.logits) - 1, step.homes[step.slot] * length + offset)

    def recall(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """The logits kept, the row of them that each row had in its sample's last step (-1: none), and its divergences
        ``[rows, history]``."""
        home, position = step.homes[step.slot], step.position
        known = self.seen[home, position] == step.index[step.slot] - 1
        past = self.past[home, position].masked_fill(~known[:, None], 0.0)
        return self.logits, torch.where(known, self.place(step, position), -1), past

    def keep(self, step: Step, past: Tensor) -> None:
        """Remember this step's rows."""
        home, position = step.homes[step.slot], step.position
        if step.void is not None:  # to the first column, which is a prompt's and never read
            position = torch.where(step.void, 0, position)
        self.logits.index_copy_(0, self.place(step, position), step.logits)
        self.past[home, position], self.seen[home, position] = past, step.index[step.slot]


class Leaders(Memory):
    """The likeliest token of each canvas position when a step last read it. Arguments as in ``Previous``."""

    def __init__(self, samples: int, width: int, device):
        self.token = torch.zeros(samples, width, dtype=torch.long, device=device)
        self.state = [self.token]

    def changed(self, step: Step) -> Tensor:
        """Which rows of the step have another leader than before, bool ``[rows]``; remembers those of now."""
        place = step.homes[step.slot], step.position
        before, now = self.token[place], step.top.index
        self.token[place] = now if step.void is None else torch.where(step.void, before, now)
        return before != now


class Credits(Memory):
    """The tokens that have led at each canvas position since its block began, with their credits.

    Every forward of a block adds one token at most and commits one at least, so ``room`` for as many as the longest
    block has positions holds them all. A credit of 0 stands for none.

    Args:
        samples, width: as in ``Previous``.
        room: positions of the longest block.
    """

    def __init__(self, samples: int, width: int, room: int, device):
        self.token = torch.zeros(samples, width, room, dtype=torch.long, device=device)
        self.credit = torch.zeros(samples, width, room, dtype=torch.float64, device=device)
        self.state = [self.token, self.credit]

    def add(self, step: Step, leader: Tensor, gain: Tensor, decay: float) -> tuple[Tensor, Tensor]:
        """Let the credits of the step's rows decay, add ``gain`` to that of their ``leader`` (both ``[rows]``), and
        return the credited tokens and their credits, ``[rows, room]``."""
        home, index = step.homes[step.slot], step.block_index[step.slot][:, None]
        before = self.token[home, step.position], self.credit[home, step.position]
        token, credit = before[0], torch.where(index > 0, before[1] * decay, 0.0)
        known = (token == leader[:, None]) & (credit > 0)
        new = torch.arange(credit.shape[1], device=credit.device) == index  # each forward of the block has its own
        here = torch.where(known.any(1, keepdim=True), known, new)
        token, credit = torch.where(here, leader[:, None], token), torch.where(here, credit + gain[:, None], credit)
        kept = token, credit
        if step.void is not None:
            kept = (torch.where(step.void, old, now) for old, now in zip(before, kept, strict=True))
        self.token[home, step.position], self.credit[home, step.position] = kept
        return token, credit
