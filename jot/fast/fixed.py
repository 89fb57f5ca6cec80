"""One denoising step with fixed shapes, state and all on the device: what ``jot.fast.loop`` runs, as a graph on CUDA.

The rules, schedules and proposals are those of ``jot.sampler``. What differs is that a step has a fixed number of rows,
some of them idle, and that blocks and counters advance on the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from jot.fast.shortlist import dream_small
from jot.models.base import DiffusionModel
from jot.sampler.cache import KVCache, View
from jot.sampler.config import DecodeConfig
from jot.sampler.loop import predict
from jot.sampler.output import Traces
from jot.sampler.proposals import PROPOSALS, KeyedDraws, committed, decide
from jot.sampler.schedules import SCHEDULES, entry
from jot.sampler.step import Step

ROWS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # capacities of a step; beyond, multiples of the last
BATCHES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128)


class Shape(NamedTuple):
    """What a graph is captured for."""

    batch: int  # slots that take part
    rows: int  # asked rows that there is room for
    columns: int  # of the canvases
    queries: int  # columns that the forward runs on; fewer within a cached block
    padded: bool  # whether some canvas is shorter
    whole: bool  # a forward of the whole canvas, not within a cached block
    straight: bool  # the slots are 0, 1, ..., so that a cache is read in place


def capacity(rows: int, sizes: tuple[int, ...] = ROWS) -> int:
    """The least of the sizes that holds so many."""
    return next((size for size in sizes if size >= rows), -(-rows // sizes[-1]) * sizes[-1])


def compact(asked: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row and column of the first ``size`` true entries of a matrix in reading order, and which of them there are.

    Places that are left over stand for entry (0, 0), which belongs to a prompt and is never written.
    """
    row, column = torch.nonzero_static(asked, size=size, fill_value=0).unbind(1)
    return row, column, torch.arange(size, device=asked.device) < asked.sum()


class FixedStep:
    """State of ``slots`` canvases on the device, an idle one beside several, and the step that advances them.

    Args:
        width: columns of the canvases.
        trace: keep how each canvas was filled.

    Attributes:
        forward: hidden states of a canvas, as ``model.hidden``; ``jot.fast.loop`` puts its own in place.
    """

    @torch.inference_mode(False)  # what is kept must be writable in either mode
    def __init__(self, model: DiffusionModel, config: DecodeConfig, method, slots: int, width: int, trace: bool):
        self.model, self.config, self.method, self.draws = model, config, method, KeyedDraws()
        self.forward = lambda *given: model.hidden(*given)  # a bound method would hold more than a proxy
        device, every = model.device, slots + (slots > 1)
        self.slots = slots  # the one beside them, always done, fills a batch up
        self.cache = KVCache(every, width) if config.cache else None
        self.canvas = torch.full((every, width), model.eos_id, device=device)
        self.given = torch.zeros_like(self.canvas, dtype=torch.bool)  # what guidance hides
        zeros = torch.zeros(every, dtype=torch.long, device=device)
        self.prompt, self.keys, self.pick, self.end = zeros.clone(), zeros.clone(), zeros.clone(), zeros + width
        # What the host reads between steps, one transfer: rows that each slot asks for next, step within its block,
        # block, whether it is done, steps, forwards of the whole canvas, masks with which its block began; then two
        # flags, not a number and held back.
        self.counters = torch.zeros(7 * every + 2, dtype=torch.long, device=device)
        self.kinds = self.counters[:-2].view(7, every)
        self.asked, self.index, self.block, self.done, self.steps, self.opened, self.begun = self.kinds
        self.flags = self.counters[-2:]
        self.column = torch.arange(width, device=device)
        self.edges = torch.tensor([0, *(end for _, end in config.blocks)], device=device)
        fixed = [offset for offset, _ in config.constraints]
        self.masks = [end - start - sum(start <= at < end for at in fixed) for start, end in config.blocks]
        # The plan of a block by the masks with which it begins: its length, and where its entries stand among all.
        begins = range(max(self.masks) + 1) if method.canvas and len(self.masks) > 1 else sorted(set(self.masks))
        self.lengths, starts, entries = [0] * (max(self.masks) + 1), [0] * (max(self.masks) + 1), []
        for masks in begins:
            plan = SCHEDULES[config.schedule](masks, config.block_steps, config.eps)
            self.fraction = plan.dtype.kind == "f"
            if config.keep_steps and not masks:  # a block that begins full has nothing planned
                plan = plan[:0]
            self.lengths[masks], starts[masks] = len(plan), len(entries)
            entries += [entry(plan, i) for i in range(len(plan) + 1)]
        self.planned, self.plans = torch.tensor([self.lengths, starts], device=device)
        self.entries = torch.tensor(entries, dtype=torch.float32, device=device)
        # A rule, or the forward that opens a block of a shifted model, may take a block beyond its plan.
        self.unplanned = method.endless or (self.cache is not None and model.shift > 0 and not self.fraction)
        self.banned = torch.tensor(sorted({model.mask_id, *config.suppress_tokens}), device=device)
        self.memory = method.remember(model, config, every, width)
        self.traces = Traces(every, width, config, device) if trace else None

    @property
    def state(self) -> list[Tensor]:
        """Every tensor that a step writes."""
        found = [self.canvas, self.counters]
        if self.cache is not None:
            found += [*self.cache.keys, *self.cache.values]
        if self.memory is not None:
            found += self.memory.state
        return found + (list(vars(self.traces).values()) if self.traces else [])

    @property
    def first(self) -> tuple[int, int]:
        """The block that a sample begins with, and rows that its first step asks for at most."""
        early = self.config.stop_early
        block = next(i for i, masks in enumerate(self.masks) if masks or self.lengths[masks] and not early)
        return block, self.config.length if self.method.scope == "canvas" else self.masks[block]

    @torch.inference_mode()
    def advance(self, shape: Shape, exact: bool = False) -> None:
        """One step of the picked slots; no result, state changes only. ``exact``: look at whole rows."""
        model, method, config, whole = self.model, self.method, self.config, shape.whole
        pick, column = self.pick[: shape.batch], self.column[: shape.columns]
        canvas, prompt, end = self.canvas[pick, : shape.columns], self.prompt[pick], self.end[pick]
        before = self.kinds[:, pick]
        _, index, block, done, steps, _, begun = before
        active = done == 0
        inside = column < end[:, None]
        here = block.clamp(max=len(self.masks) - 1)
        masks = (canvas == model.mask_id) & inside & active[:, None]
        edges = prompt[:, None] + self.edges
        start, stop = edges.gather(1, here[:, None]), edges.gather(1, here[:, None] + 1)
        in_block = masks & (column >= start) & (column < stop)
        asked = masks if method.scope == "canvas" and whole else in_block
        extra = method.extra_rows(masks, prompt, end) if whole else None
        row, position, live = compact(asked if extra is None else asked | extra, shape.rows)
        view = None
        if self.cache is not None:
            within = None
            if not whole:
                within = start + column[: shape.queries]
                within = torch.where(within < end[:, None], within, shape.columns)
            view = View(self.cache, pick, shape.columns, within, shape.straight)
        key_mask = inside if shape.padded else None
        given = self.given[pick, : shape.columns] if config.guidance > 0 else None
        logits = predict(model, config, self.banned, canvas, given, key_mask, row, position, view, self.forward)
        share = self.entries[self.plans[begun] + torch.minimum(index, self.planned[begun])]
        step = Step(
            logits, row, position, in_block[row, position] & live, masks, ~masks & inside, index=steps,
            block_index=index, share=share, keys=self.keys[pick], prompt=prompt, end=end, homes=pick, whole=whole,
            steps=config.steps, memory=self.memory,
        )  # fmt: skip
        if config.nucleus and not exact:
            step.proposal, short = dream_small(step, config, self.draws)
            step.void = (short & live).any()
        else:
            step.proposal = PROPOSALS[config.proposal](step, config, self.draws)
        opening = start[:, 0] if whole and self.cache is not None and model.shift else None
        exits, chosen, threshold = decide(step, method, config, self.draws, self.fraction, opening)
        commit = self.commit(step, pick, live, exits, chosen, canvas[row, position])
        if step.void is not None:  # nothing happens; the host takes this step again and looks at whole rows
            active = active & ~step.void
        if self.traces is not None:
            self.traces.record(step, live, exits, chosen, commit, threshold)
        self.turn(pick, before, inside, edges, active, whole)

    def commit(self, step: Step, pick, live, exits, chosen, old) -> Tensor:
        """Write what the live rows commit into the canvas, and the two flags; returns the rows, bool ``[rows]``."""
        commit = (exits | chosen) & live
        if step.void is not None:
            commit = commit & ~step.void
            self.flags[1:].copy_(step.void[None])
        token = torch.where(commit, committed(step, self.method, exits), old)
        self.canvas.index_put_((pick[step.slot], step.position), token)
        self.flags[0] += (step.top.total.isnan() & live).any()
        return commit

    def turn(self, pick: Tensor, before: Tensor, inside: Tensor, edges: Tensor, active: Tensor, whole: bool) -> None:
        """Move the active slots, of the counters ``before``, to a block with work left, as ``Loop.advance`` does."""
        config, canvas, column = self.config, self.canvas[pick, : inside.shape[1]], self.column[: inside.shape[1]]
        _, index, block, _, steps, opened, begun = before
        masks = (canvas == self.model.mask_id) & inside
        left = F.pad(masks.cumsum(1), (1, 0))
        counts = left.gather(1, edges[:, 1:]) - left.gather(1, edges[:, :-1])
        blocks, index = len(self.masks), index + 1
        each = torch.arange(blocks, device=pick.device)
        same = each == block[:, None]
        planned = self.planned[torch.where(same, begun[:, None], counts)]
        at = torch.where(same, index[:, None], 0)
        open_ = (each >= block[:, None]) & ((at < planned) | (self.unplanned & (counts > 0)))
        if config.stop_early:
            open_ = open_ & ((counts.sum(1, keepdim=True) if config.keep_steps else counts) > 0)
        if config.extra_in_block and self.cache is not None:
            open_ = open_ | (same & (index == 1)[:, None])
        new = torch.where(open_, each, blocks).amin(1)
        if config.stop_at_eos:
            eos = (canvas == self.model.eos_id) & inside & (column >= edges[:, :1])
            first, hole = (torch.where(found, column, len(column)).amin(1) for found in (eos, masks))
            new = torch.where(first < hole, blocks, new)
        done, stays = new == blocks, new == block
        here = asked = counts.gather(1, new.clamp(max=blocks - 1)[:, None])[:, 0]
        if self.method.scope == "canvas":
            extra = self.method.extra_rows(masks, edges[:, 0], edges[:, -1])
            every = counts.sum(1) if extra is None else (masks | extra).sum(1)
            asked = every if self.cache is None else torch.where(stays, asked, every)
        asked, here = (torch.where(done, 0, count) for count in (asked, here))
        index, begun = torch.where(stays, index, 0), torch.where(stays, begun, here)
        after = torch.stack((asked, index, new, done.long(), steps + 1, opened + whole, begun))
        self.kinds[:, pick] = torch.where(active, after, before)
