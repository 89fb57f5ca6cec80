"""Passes over the vocabulary, a few rows at a time, so that no second copy of the logits is ever made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Top2(NamedTuple):
    """Per row: the largest logit, the runner-up, the lowest index of the largest, and log sum exp."""

    first: Tensor
    second: Tensor
    index: Tensor
    normalizer: Tensor

    @property
    def gap(self) -> Tensor:
        """Top-2 logit margin in nats, ``ln(p1 / p2)``; ``[rows]``."""
        return self.first - self.second


def slices(logits: Tensor) -> Iterator[slice]:
    """Consecutive row slices of ``[rows, vocabulary]`` logits with about 4 M elements each (at least one slice)."""
    size = max(1, (1 << 22) // logits.shape[-1])
    for start in range(0, max(1, len(logits)), size):
        yield slice(start, min(start + size, len(logits)))


def top2(logits: Tensor) -> Top2:
    """Top-2 statistics of ``logits`` ``[rows, vocabulary]``, with ties resolved to the lowest index."""
    parts = [_top2(logits[rows]) for rows in slices(logits)]
    return Top2(*map(torch.cat, zip(*parts, strict=True)))


def _top2(logits: Tensor) -> Top2:
    first, index = logits.max(dim=-1)
    if logits.is_cuda:  # max documents no tie rule there
        columns = torch.arange(logits.shape[-1], device=logits.device)
        index = torch.where(logits == first[:, None], columns, logits.shape[-1] - 1).amin(dim=-1)
    second = logits.scatter(-1, index[:, None], -torch.inf).amax(dim=-1)
    return Top2(first, second, index, logits.logsumexp(dim=-1))
