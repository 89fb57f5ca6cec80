"""What KLASS remembers of the step before: logits of the masked rows, and where on the canvas they stood."""

from __future__ import annotations

import torch
from torch import Tensor

from jot.sampler.kernels import slices
from jot.sampler.step import Step


class Previous:
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
