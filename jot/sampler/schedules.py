"""Transfer schedules: how many masks a plain step reveals.

A schedule maps (masks, steps) to one entry a step. Whole numbers are counts, fixed before the block
starts; fractions are shares of the masks that remain when the step comes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def llada(masks: int, steps: int, eps: float = 1e-3) -> np.ndarray:
    """LLaDA's counts: ``masks // steps`` each, the first ``masks % steps`` steps one more (Nie et al. 2025)."""
    base, rest = divmod(masks, steps)
    return np.array([base + (i < rest) for i in range(steps)], dtype=np.int64)


def precomputed(masks: int, steps: int, eps: float = 1e-3) -> np.ndarray:
    """Counts of a linear noise schedule rounded half to even, empty steps deleted (dllm).

    At least one mask a step, so early exits never stall it: the default for Dream.
    """
    level = 1 - torch.arange(steps, -1, -1, dtype=torch.float32, device="cpu") / steps  # alpha at t = 1, ..., 0
    counts, left = [], masks
    for now, then in zip(level[:-1], level[1:], strict=True):
        keep = float((1 - then) / (1 - now))
        counts.append(min(left, round(left * (1 - keep))))
        left -= counts[-1]
    return np.array([k for k in counts if k], dtype=np.int64)


def dream(masks: int, steps: int, eps: float = 1e-3) -> np.ndarray:
    """Dream's own shares ``1 - s/t`` with t from 1 down to ``eps``, all that is left at the end (Ye et al. 2025).

    The share is taken of the masks that remain and truncated, so tokens that leave early turn
    into later steps that reveal nothing: kept for parity, not for use with an exit rule.
    """
    t = torch.linspace(1, eps, steps + 1, device="cpu")  # whatever the default device
    share = 1 - t[1:] / t[:-1]
    share[-1] = 1.0
    return share.numpy()


def single(masks: int, steps: int, eps: float = 1e-3) -> np.ndarray:
    """One token a step (what KLASS falls back to on Dream)."""
    return np.ones(steps, dtype=np.int64)


def entry(plan: np.ndarray, index: int) -> float:
    """What a plan says of a step. Beyond its end: as its last step, but at least one token, so that a block ends."""
    return plan[index] if index < len(plan) else max([1, *plan[-1:]])


SCHEDULES = {"llada": llada, "precomputed": precomputed, "dream": dream, "single": single}


def highest(confidence: Tensor, slot: Tensor, quota: Tensor, candidate: Tensor) -> Tensor:
    """The ``quota[slot]`` most confident candidates of each slot, ties to the lowest position.

    Args:
        confidence: ``[rows]``, rows ordered by slot and position.
        slot: slot of each row, ``[rows]``.
        quota: how many each slot may reveal, ``[slots]``.
        candidate: rows that may be chosen, bool ``[rows]``.

    Returns:
        bool ``[rows]``.
    """
    return (ranks(confidence, slot, candidate, len(quota)) < quota[slot]) & candidate


def count(slot: Tensor, counted: Tensor, slots: int) -> Tensor:
    """How many of the ``counted`` rows (bool) each slot has, ``[slots]``; unlike bincount, the host need not wait."""
    return torch.zeros(slots, dtype=torch.long, device=slot.device).index_add_(0, slot, counted.long())


def ranks(confidence: Tensor, slot: Tensor, candidate: Tensor, slots: int) -> Tensor:
    """Rank from 0 of each row among its slot's candidates, by confidence, then position; the others come last."""
    order = torch.where(candidate, confidence, -torch.inf).argsort(descending=True, stable=True)
    order = order[slot[order].argsort(stable=True)]
    size = count(slot, torch.ones_like(candidate), slots)
    first = size.cumsum(0) - size
    rank = torch.empty_like(slot)
    rank[order] = torch.arange(len(order), device=order.device) - first[slot[order]]
    return rank
