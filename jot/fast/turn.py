"""What the loop of fixed shapes does beside the forward and the rules, as one launch each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jot.sampler.kernels import triton

if TYPE_CHECKING:
    from jot.fast.fixed import FixedStep
    from jot.sampler.step import Step

if triton is not None:
    import triton.language as tl


def fused_compact(asked: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """``fixed.compact`` by one program; for matrices that one reads quickly."""
    row, column = torch.empty(2, size, dtype=torch.long, device=asked.device)
    live = torch.empty(size, dtype=torch.bool, device=asked.device)
    asked = asked.contiguous()
    with torch.cuda.device_of(asked):
        _compact_kernel[(1,)](
            asked.view(torch.uint8), row, column, live.view(torch.uint8), asked.numel(), asked.shape[1], size,
            BLOCK=1024, SIZE=triton.next_power_of_2(size), num_warps=4,
        )  # fmt: skip
    return row, column, live


def fused_turn(fixed: FixedStep, pick: Tensor, active: Tensor, whole: bool) -> None:
    """``FixedStep.turn``, one program a slot; for rules that read no rows beside the masks."""
    config, every = fixed.config, len(fixed.done)
    cached = fixed.cache is not None
    longest = max(end - start for start, end in config.blocks)
    with torch.cuda.device_of(pick):
        _turn_kernel[(len(pick),)](
            fixed.canvas, fixed.counters, fixed.prompt, pick, active.view(torch.uint8), fixed.edges, fixed.planned,
            fixed.canvas.stride(0), every, fixed.model.mask_id, fixed.model.eos_id, len(fixed.masks), WHOLE=whole,
            UNPLANNED=bool(fixed.unplanned), EARLY=config.stop_early, KEEP=config.keep_steps, STOP=config.stop_at_eos,
            EXTRA=config.extra_in_block and cached, WIDE=fixed.method.scope == "canvas", CACHED=cached,
            BLOCK=triton.next_power_of_2(longest), num_warps=1,
        )  # fmt: skip


def fused_commit(fixed: FixedStep, step: Step, pick: Tensor, live: Tensor, exits: Tensor, chosen: Tensor) -> Tensor:
    """Write what the live rows commit into the canvas, and the two flags; returns the rows, bool ``[rows]``."""
    rows, method = len(live), fixed.method
    commit, void = torch.empty_like(live), step.void
    with torch.cuda.device_of(live):
        _commit_kernel[(triton.cdiv(rows, 128),)](
            exits.view(torch.uint8), chosen.view(torch.uint8), live.view(torch.uint8),
            (live if void is None else void).view(torch.uint8), step.top.index, step.proposal.token, step.top.total,
            step.slot, step.position, pick, fixed.canvas, fixed.flags, commit.view(torch.uint8),
            fixed.canvas.stride(0), rows, VOID=void is not None, DRAWN=method.takes == "proposal",
            GREEDY=method.greedy, BLOCK=128, num_warps=4,
        )  # fmt: skip
    return commit


if triton is not None:

    @triton.jit
    def _commit_kernel(
        exits, chosen, live, void, index, token, total, slot, position, pick, canvas, flags, commit, stride, rows,
        VOID: tl.constexpr, DRAWN: tl.constexpr, GREEDY: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = row < rows
        here = tl.load(live + row, mask=inside, other=0) > 0
        leaves = tl.load(exits + row, mask=inside, other=0) > 0
        taken = here & (leaves | (tl.load(chosen + row, mask=inside, other=0) > 0))
        if VOID:
            nothing = tl.load(void)
            taken = taken & (nothing == 0)
            tl.store(flags + 1, nothing.to(tl.int64))
        likeliest = tl.load(index + row, mask=inside, other=0)
        drawn = tl.load(token + row, mask=inside, other=0)
        if GREEDY:
            drawn = likeliest
        elif not DRAWN:
            drawn = tl.where(leaves, likeliest, drawn)
        home = tl.load(pick + tl.load(slot + row, mask=inside, other=0))
        tl.store(canvas + home * stride + tl.load(position + row, mask=inside, other=0), drawn, mask=taken)
        tl.store(commit + row, taken.to(tl.uint8), mask=inside)
        mass = tl.load(total + row, mask=inside, other=0.0)
        if tl.sum((here & (mass != mass)).to(tl.int32), axis=0) > 0:
            tl.store(flags, 1)

    @triton.jit
    def _compact_kernel(asked, row, column, live, entries, width, size, BLOCK: tl.constexpr, SIZE: tl.constexpr):
        place = tl.arange(0, SIZE)
        tl.store(row + place, tl.zeros([SIZE], tl.int64), mask=place < size)
        tl.store(column + place, tl.zeros([SIZE], tl.int64), mask=place < size)
        tl.debug_barrier()
        found = 0
        for start in range(0, entries, BLOCK):
            at = start + tl.arange(0, BLOCK)
            hit = tl.load(asked + at, mask=at < entries, other=0).to(tl.int32)
            target = found + tl.cumsum(hit, axis=0) - 1
            kept = (hit > 0) & (target < size)
            tl.store(row + target, (at // width).to(tl.int64), mask=kept)
            tl.store(column + target, (at % width).to(tl.int64), mask=kept)
            found += tl.sum(hit, axis=0)
        tl.store(live + place, (place < found).to(tl.uint8), mask=place < size)

    @triton.jit
    def _turn_kernel(
        canvas, counters, prompt, pick, active, edges, planned, stride, every, mask_id, eos_id, blocks,
        WHOLE: tl.constexpr, UNPLANNED: tl.constexpr, EARLY: tl.constexpr, KEEP: tl.constexpr, STOP: tl.constexpr,
        EXTRA: tl.constexpr, WIDE: tl.constexpr, CACHED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        if tl.load(active + tl.program_id(0)) != 0:
            slot = tl.load(pick + tl.program_id(0))
            mine = counters + slot  # of each kind: asked, index, block, done, steps, opened, begun
            index, block = tl.load(mine + every) + 1, tl.load(mine + 2 * every)
            begun = tl.load(mine + 6 * every)
            first = canvas + slot * stride + tl.load(prompt + slot)
            lane = tl.arange(0, BLOCK)
            total, asked, new = block * 0, block * 0, block * 0 + blocks
            eos, hole = block * 0 + 2147483647, block * 0 + 2147483647
            for each in range(0, blocks):
                start, stop = tl.load(edges + each), tl.load(edges + each + 1)
                token = tl.load(first + start + lane, mask=start + lane < stop, other=-1)
                masks = tl.sum((token == mask_id).to(tl.int64), axis=0)
                ahead = tl.load(planned + tl.where(each == block, begun, masks)) > tl.where(each == block, index, 0)
                work = (each >= block) & (ahead | ((masks > 0) & UNPLANNED))
                if EARLY and not KEEP:
                    work = work & (masks > 0)
                if EXTRA:
                    work = work | ((each == block) & (index == 1))
                chosen = work & (new == blocks)
                asked = tl.where(chosen, masks, asked)
                new = tl.where(chosen, each, new)
                total += masks
                if STOP:
                    eos = tl.minimum(eos, tl.min(tl.where(token == eos_id, start + lane, 2147483647), axis=0))
                    hole = tl.minimum(hole, tl.min(tl.where(token == mask_id, start + lane, 2147483647), axis=0))
            if KEEP:  # every block's plan goes on as long as there are masks anywhere
                new = tl.where(total > 0, new, blocks)
            if STOP:  # the text has ended where no mask is left before its first end
                new = tl.where(eos < hole, blocks, new)
            asked = tl.where(new == blocks, 0, asked)
            tl.store(mine + 6 * every, tl.where(new == block, begun, asked))
            if WIDE:
                asked = tl.where((new != blocks) & ((new != block) | (not CACHED)), total, asked)
            tl.store(mine, asked)
            tl.store(mine + every, tl.where(new == block, index, 0))
            tl.store(mine + 2 * every, new)
            tl.store(mine + 3 * every, (new == blocks).to(tl.int64))
            tl.store(mine + 4 * every, tl.load(mine + 4 * every) + 1)
            if WHOLE:
                tl.store(mine + 5 * every, tl.load(mine + 5 * every) + 1)
