"""What rules remember between steps: KLASS the last one's logits of the masked rows, and where on the canvas they
stood; SchED the token that led there; CreditDecoding all that have led at each position of the block."""

from __future__ import annotations

import torch
from torch import Tensor

from jot.sampler.kernels import slices
from jot.sampler.step import Step


class Memory:
    """What a rule keeps between steps; nothing of it changes in a step that is void.

    Attributes:
        state: every tensor that a step writes, where they keep their place in memory.
    """

    state: list[Tensor]


class Previous(Memory):
    """Rows of each sample's last step.

    Args:
        samples: batch rows that a run has.
        width: of their canvases.
        history: divergences kept a position.
        room: rows and vocabulary of a buffer that keeps its place in memory, for a graph; None keeps the tensors.
        dtype: of the logits in that buffer.
    """

    def __init__(
        self, samples: int, width: int, history: int, device, room: tuple[int, int] | None = None,
        dtype: torch.dtype = torch.float32,
    ):  # fmt: skip
        self.place = torch.full((samples, width), -1, dtype=torch.long, device=device)  # row of ``logits``, or -1
        self.past = torch.zeros(samples, width, history, dtype=torch.float64, device=device)
        self.fixed = room is not None
        self.logits = torch.zeros(room, dtype=dtype, device=device) if room else None
        self.owner: Tensor | None = None  # the sample of each row

    def recall(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """The logits kept (or any, where no row has one), each row's row of them (-1: none), and its divergences
        ``[rows, history]``.
        """
        home = step.homes[step.slot]
        at = torch.where((step.index > 0)[step.slot], self.place[home, step.position], -1)
        past = self.past[home, step.position].masked_fill((at < 0)[:, None], 0.0)
        none = self.logits is None or not len(self.logits)
        return step.logits if none else self.logits, at, past

    def keep(self, step: Step, past: Tensor) -> None:
        """Remember this step's rows; those of samples that did not take part stay."""
        home, logits = step.homes[step.slot], step.logits
        first = 0
        place = self.place
        if self.fixed:
            kept = self.logits[: len(logits)]
            if step.void is None:
                kept.copy_(logits)
            else:
                for rows in slices(logits):  # a slice at a time, as the choice makes a copy
                    kept[rows].copy_(torch.where(step.void, kept[rows], logits[rows]))
            place = self.place.clone()
        else:
            others = None if self.owner is None else ~torch.isin(self.owner, step.homes)
            if others is not None and others.any():
                at, kept = others.nonzero()[:, 0], self.owner[others]
                moved = torch.full((len(self.owner) + 1,), -1, device=at.device)  # the last stands for "none"
                moved[at] = torch.arange(len(at), device=at.device)
                place = self.place = moved[self.place]
                logits, first = torch.cat((self.logits[at], logits)), len(at)
            self.logits, self.owner = logits, torch.cat((kept, home)) if first else home
        place.index_fill_(0, step.homes, -1)  # no scalar to be copied to the device
        place[home, step.position] = first + torch.arange(len(home), device=home.device)
        if step.void is not None:
            past = torch.where(step.void, self.past[home, step.position], past)
            place = torch.where(step.void, self.place, place)
        self.past[home, step.position] = past
        if self.fixed:
            self.place.copy_(place)

    @property
    def state(self) -> list[Tensor]:
        return [self.place, self.past, self.logits]


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
        return the credited tokens and their credits, ``[rows, room]``.
        """
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
