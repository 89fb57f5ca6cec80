"""What a step does beside the forward and the vocabulary, as one launch each where torch takes dozens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jot.sampler.kernels import triton

if TYPE_CHECKING:
    from jot.sampler.step import Step

if triton is not None:
    import triton.language as tl


def fused_ranks(score: Tensor, slot: Tensor) -> Tensor:
    """Rank from 0 of each row in its slot, by score, then position (``schedules.ranks``); every row against every."""
    rows = len(score)
    rank = torch.empty(rows, dtype=torch.long, device=score.device)
    with torch.cuda.device_of(score):
        _ranks_kernel[(triton.cdiv(rows, 32),)](score, slot, rank, rows, BLOCK=32, OTHERS=128, num_warps=4)
    return rank


def fused_uniform(keys: Tensor, index: Tensor, slot: Tensor, position: Tensor, stream: int) -> Tensor:
    """Uniform numbers in (0, 1), float64 ``[rows]`` (``proposals.KeyedDraws``)."""
    rows = len(slot)
    drawn = torch.empty(rows, dtype=torch.float64, device=slot.device)
    salt = (stream + 1) * -0x61C8864680B583EB
    salt = (salt + (1 << 63)) % (1 << 64) - (1 << 63)  # as int64 wraps
    with torch.cuda.device_of(slot):
        _uniform_kernel[(triton.cdiv(rows, 128),)](keys, index, slot, position, drawn, salt, rows, BLOCK=128)
    return drawn


def fused_scheduled(step: Step, rank: Tensor, exits: Tensor, combine: str, fraction: bool) -> Tensor:
    """``proposals.scheduled`` where rows are chosen by rank; bool ``[rows]``."""
    rows = len(rank)
    chosen = torch.empty(rows, dtype=torch.bool, device=rank.device)
    with torch.cuda.device_of(rank):
        _scheduled_kernel[(triton.cdiv(rows, 32),)](
            rank, step.slot, step.in_block.view(torch.uint8), exits.view(torch.uint8), step.share,
            chosen.view(torch.uint8), rows, FRACTION=fraction, AFTER=combine == "after_exit",
            INSTEAD=combine == "instead", BLOCK=32, OTHERS=128, num_warps=4,
        )  # fmt: skip
    return chosen


if triton is not None:

    @triton.jit
    def _scheduled_kernel(
        rank, slot, in_block, exits, share, chosen, rows, FRACTION: tl.constexpr, AFTER: tl.constexpr,
        INSTEAD: tl.constexpr, BLOCK: tl.constexpr, OTHERS: tl.constexpr,
    ):  # fmt: skip
        mine = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        home = tl.load(slot + mine, mask=mine < rows, other=-1)
        candidate = tl.load(in_block + mine, mask=mine < rows, other=0) > 0
        if AFTER:
            candidate = candidate & (tl.load(exits + mine, mask=mine < rows, other=0) == 0)
        value = tl.where(candidate, tl.load(rank + mine, mask=mine < rows, other=0.0), float("-inf"))
        ahead, left, gone = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
        for start in range(0, rows, OTHERS):
            other = start + tl.arange(0, OTHERS)
            asked = tl.load(in_block + other, mask=other < rows, other=0) > 0
            exiting = tl.load(exits + other, mask=other < rows, other=0) > 0
            same = tl.load(slot + other, mask=other < rows, other=-2)[None, :] == home[:, None]
            rival = (asked & (exiting == 0)) if AFTER else asked
            theirs = tl.where(rival, tl.load(rank + other, mask=other < rows, other=0.0), float("-inf"))
            tied = (theirs[None, :] == value[:, None]) & (other[None, :] < mine[:, None])
            ahead += tl.sum((((theirs[None, :] > value[:, None]) | tied) & same).to(tl.int64), axis=1)
            left += tl.sum((same & asked[None, :]).to(tl.int64), axis=1)
            gone += tl.sum((same & exiting[None, :]).to(tl.int64), axis=1)
        given = tl.load(share + home, mask=mine < rows, other=0.0)
        if FRACTION:
            quota = (left.to(tl.float32) * given).to(tl.int64)
        else:
            quota = tl.minimum(given.to(tl.int64), left)
        taken = candidate & (ahead < quota)
        if INSTEAD:
            taken = taken & (gone == 0)
        tl.store(chosen + mine, taken.to(tl.uint8), mask=mine < rows)

    @triton.jit
    def _ranks_kernel(score, slot, rank, rows, BLOCK: tl.constexpr, OTHERS: tl.constexpr):
        mine = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(score + mine, mask=mine < rows, other=0.0)
        home = tl.load(slot + mine, mask=mine < rows, other=-1)
        ahead = tl.zeros([BLOCK], tl.int64)
        for start in range(0, rows, OTHERS):
            other = start + tl.arange(0, OTHERS)
            theirs = tl.load(score + other, mask=other < rows, other=0.0)
            where = tl.load(slot + other, mask=other < rows, other=-2)
            tied = (theirs[None, :] == value[:, None]) & (other[None, :] < mine[:, None])
            first = ((theirs[None, :] > value[:, None]) | tied) & (where[None, :] == home[:, None])
            ahead += tl.sum(first.to(tl.int64), axis=1)
        tl.store(rank + mine, ahead, mask=mine < rows)

    @triton.jit
    def _scramble(x):
        x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
        x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
        return x ^ ((x >> 31) & 0x1FFFFFFFF)

    @triton.jit
    def _uniform_kernel(keys, index, slot, position, drawn, salt, rows, BLOCK: tl.constexpr):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = row < rows
        home = tl.load(slot + row, mask=inside, other=0)
        x = tl.load(keys + home, mask=inside, other=0)
        x = _scramble(x + (tl.load(index + home, mask=inside, other=0) + 1) * -0x61C8864680B583EB)
        x = _scramble(x + (tl.load(position + row, mask=inside, other=0) + 1) * -0x61C8864680B583EB)
        x = _scramble(x + salt)
        number = (((x >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) + 0.5) * 1.1102230246251565e-16
        tl.store(drawn + row, number, mask=inside)
