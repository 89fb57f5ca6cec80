"""The loop on CUDA: each step is one replayed graph, and between steps the host reads a few numbers.

The rules, schedules and proposals are those of ``decode.py``. What differs is that a step has a fixed number of rows,
some of them idle, and that blocks and counters advance on the device. ``JOT_FAST=1`` asks for it (on the CPU it runs
without graphs); what it cannot do, and everything without that variable, runs in the plain loop.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from jot.cache import KVCache, View
from jot.config import DecodeConfig
from jot.decode import Output
from jot.errors import UserError
from jot.exits import KLASS, METHODS, Prophet
from jot.kernels import triton
from jot.models.base import DiffusionModel, linear_to
from jot.models.fused import FusedForward
from jot.previous import Previous
from jot.proposals import PROPOSALS, KeyedDraws, committed, sample_key, scheduled
from jot.schedules import SCHEDULES
from jot.shortlist import dream_small, leader
from jot.step import Step

LOG = logging.getLogger("jot")
WIDTH = 16  # canvases are as wide as the next multiple
KEPT = 12  # loops with their graphs that a model keeps
UNASKED = "JOT_FAST is not 1"
ROWS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # capacities of a step; beyond, multiples of the last


def refusal(model: DiffusionModel, config: DecodeConfig, method, slots: int, trace: bool, draws) -> str | None:
    """Why a run goes through the plain loop, in a few words; None where the fast one takes it."""
    if os.environ.get("JOT_FAST") != "1":
        return UNASKED
    if model.device.type == "cuda" and triton is None:
        return "no Triton"
    if model.dtype == torch.float64 or config.head_dtype == "float64":
        return "float64"
    nucleus = config.proposal == "dream" and config.top_p is not None and config.top_p < 1
    for reason, holds in (
        ("traces", trace), ("the prefix cache", config.cache == "prefix"), ("guidance", config.guidance > 0),
        ("constraints", config.constraints), ("every configured step", not config.stop_early),
        ("ranks demoted at the start", config.begin_suppress_tokens), ("a weighted choice", config.alg_temp),
        ("draws of another kind", draws is not None and not isinstance(draws, KeyedDraws)),
        ("shares of the remaining masks", config.schedule == "dream"),
        ("top-k or a greedy nucleus", nucleus and (config.top_k or not config.temperature)),
        ("KLASS in a batch under a cache", config.cache and isinstance(method, KLASS) and slots > 1),
        ("a forward that the cache does not need", config.extra_in_block),
        ("blocks of unequal length under a cache", config.cache and len({b - a for a, b in config.blocks}) > 1),
        ("Prophet's other regions", isinstance(method, Prophet) and method.region != "masked"),
        ("a rule of another kind", not isinstance(method, tuple(METHODS.values()))),
    ):  # fmt: skip
        if holds:
            return reason
    return None


def _state(model: DiffusionModel) -> tuple:
    """Where and in what form the weights are."""
    return model.dtype, str(model.device), *(weight.data_ptr() for weight in model.parameters())


def stream(model, config: DecodeConfig, method, slots: int, width: int, prompts: Sequence) -> Iterator:
    """Decode ``prompts`` through a loop that the model keeps for runs of the same kind."""
    width = -(-width // WIDTH) * WIDTH
    if model.__dict__.get("_fast_state") != _state(model):  # moved, cast or loaded anew: nothing kept fits any more
        for kept in ("_fast_loops", "_fast_pool", "_fused"):
            model.__dict__.pop(kept, None)
    loops: OrderedDict = model.__dict__.setdefault("_fast_loops", OrderedDict())
    key = (replace(config, seed=0), method, slots, width)
    loop = loops.pop(key, None) or FastLoop(model, config, method, slots, width)  # ours alone until the run ends
    model.__dict__["_fast_state"] = _state(model)  # the first loop on a GPU has joined some weights
    try:
        yield from loop.run(iter(prompts), config.seed)
    except GeneratorExit:
        loops[key] = loop
        raise
    else:  # after an error it is left to the garbage collector
        loops[key] = loop
    while len(loops) > KEPT:
        loops.popitem(last=False)


def capacity(rows: int) -> int:
    return next((size for size in ROWS if size >= rows), -(-rows // ROWS[-1]) * ROWS[-1])


def compact(asked: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row and column of the first ``size`` true entries of a matrix in reading order, and which of them there are.

    Places that are left over stand for entry (0, 0).
    """
    flat = asked.flatten()
    target = torch.where(flat, (flat.cumsum(0) - 1).clamp(max=size), size)
    source = torch.zeros(size + 1, dtype=torch.long, device=asked.device)
    source = source.scatter_(0, target, torch.arange(len(flat), device=asked.device))[:size]
    live = torch.arange(size, device=asked.device) < flat.sum()
    source = torch.where(live, source, 0)
    return source // asked.shape[1], source % asked.shape[1], live


def _pool(device: torch.device) -> tuple:
    """Memory that all graphs of a model share (they never run at once), and a small graph that keeps it alive."""
    pool, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    number = torch.zeros(1, device=device)
    with torch.cuda.graph(graph, pool=pool):
        number + 1
    return pool, graph, number


class FastLoop:
    """State of ``slots`` canvases on the device, one idle canvas beside them, and the graphs that advance them."""

    @torch.inference_mode(False)  # what is kept must be writable in either mode
    def __init__(self, model: DiffusionModel, config: DecodeConfig, method, slots: int, width: int):
        self.model, self.config, self.method, self.draws = model, config, method, KeyedDraws()
        device, every = model.device, slots + 1
        self.cache = KVCache(every, width) if config.cache else None
        self.forward = model.hidden
        if model.device.type == "cuda":
            self.forward = model.__dict__["_fused"] = model.__dict__.get("_fused") or FusedForward(model)
            self.pool = model.__dict__["_fast_pool"] = model.__dict__.get("_fast_pool") or _pool(device)
        self.canvas = torch.full((every, width), model.eos_id, device=device)
        zeros = torch.zeros(every, dtype=torch.long, device=device)
        self.prompt, self.block, self.index, self.steps, self.keys = (zeros.clone() for _ in range(5))
        self.end, self.done = zeros + width, zeros == 0
        self.asked = zeros.clone()  # rows that each slot asks for next
        self.flags = torch.zeros(2, dtype=torch.long, device=device)  # not a number; held back
        self.pick = zeros + slots
        self.column = torch.arange(width, device=device)
        self.edges = torch.tensor([0, *(end for _, end in config.blocks)], device=device)
        sizes = [end - start for start, end in config.blocks]
        plans = [SCHEDULES[config.schedule](size, config.block_steps, config.eps) for size in sizes]
        self.planned = torch.tensor([len(plan) for plan in plans], device=device)
        longest = max(len(plan) for plan in plans)
        table = [list(plan) + [plan[-1]] * (longest - len(plan)) for plan in plans]
        self.plans = torch.tensor(table, dtype=torch.float32, device=device)
        self.banned = torch.tensor(sorted({model.mask_id, *config.suppress_tokens}), device=device)
        self.head_dtype = getattr(torch, config.head_dtype)
        self.first, self.size = config.length if method.scope == "canvas" else sizes[0], sizes[0]
        self.memory: dict = {"shape": (every, width)}
        if isinstance(method, KLASS):
            room = capacity(slots * config.length), model.head.shape[0]
            self.memory["previous"] = Previous(every, width, method.history, device, room)
        self.graphs: dict = {}
        self.slow = 0  # steps that had to look at whole rows
        self.idle = slots  # the slot beside them, always done
        self.picked: list[int] | None = None
        self.opened = zeros.clone()  # forwards that opened a cached block
        host = torch.zeros(4 * every + 2, dtype=torch.long)
        self.host = host.pin_memory() if device.type == "cuda" else host

    # ---- one step, on the device ---------------------------------------------------------------------------

    @torch.inference_mode()
    def advance(self, batch: int, size: int, padded: bool, whole: bool, straight: bool, exact: bool = False) -> None:
        """One step of the first ``batch`` picked slots with room for ``size`` rows; no result, state changes only.

        ``whole``: a forward of the whole canvas, not of a cached block; ``straight``: the slots picked are 0, 1, ...;
        ``exact``: look at whole rows of the vocabulary.
        """
        model, method, config = self.model, self.method, self.config
        pick = self.pick[:batch]
        canvas, prompt, end = self.canvas[pick], self.prompt[pick], self.end[pick]
        block, index, steps, active = self.block[pick], self.index[pick], self.steps[pick], ~self.done[pick]
        here = block.clamp(max=len(self.planned) - 1)
        inside = self.column < end[:, None]
        masks = (canvas == model.mask_id) & inside & active[:, None]
        edges = prompt[:, None] + self.edges
        start, stop = edges.gather(1, here[:, None]), edges.gather(1, here[:, None] + 1)
        in_block = masks & (self.column >= start) & (self.column < stop)
        row, position, live = compact(masks if method.scope == "canvas" and whole else in_block, size)
        source, tokens, view = model.source_row(position), canvas, None
        if self.cache is not None:
            within = None if whole else start + self.column[: self.size]
            view = View(self.cache, pick, canvas.shape[1], within, straight)
            if not whole:
                tokens, source = canvas.gather(1, within), (source - start[row, 0]).clamp(0, self.size - 1)
        hidden = self.forward(tokens, inside if padded else None, view)
        logits = linear_to(hidden[row, source], model.head, self.head_dtype).float()
        logits.index_fill_(1, self.banned, -torch.inf)
        step = Step(
            logits, row, position, in_block[row, position] & live, masks, ~masks & inside, index=steps,
            block_index=index, share=self.plans[here, index.clamp(max=self.plans.shape[1] - 1)],
            keys=self.keys[pick], prompt=prompt, end=end, homes=pick, whole=whole, steps=config.steps,
            memory=self.memory,
        )  # fmt: skip
        short = self.propose(step, exact)
        if short is not None:
            step.void = (short & live).any()
        exits, _ = method(step)
        if whole and self.cache is not None and model.shift:  # as in the plain loop
            chosen = step.in_block & (position == start[row, 0])
            exits = exits if method.block_start else step.none()
        else:
            chosen = scheduled(step, method, config, self.draws, exits, fraction=False)
        commit = (exits | chosen) & live
        if step.void is not None:  # nothing happens; the host takes this step again and looks at whole rows
            commit, active = commit & ~step.void, active & ~step.void
            self.flags[1] += step.void
        token = torch.where(commit, committed(step, method, exits), canvas[row, position])
        self.canvas.index_put_((pick[row], position), token)
        self.flags[0] += (step.top.total.isnan() & live).any()
        self.opened[pick] += active & whole
        self.turn(pick, inside, edges, block, index, steps, active)

    def propose(self, step: Step, exact: bool) -> Tensor | None:
        """Set the step's proposal; returns the rows for which it is not exact, or None."""
        config = self.config
        greedy = not config.temperature and config.ranking == "confidence" and not config.top_k
        nucleus = config.proposal == "dream" and config.top_p is not None and config.top_p < 1
        if nucleus and not exact:
            step.proposal, short = dream_small(step, config, self.draws)
            return short
        step.proposal = leader(step) if greedy else PROPOSALS[config.proposal](step, config, self.draws)
        return None

    def turn(self, pick, inside, edges, block, index, steps, active) -> None:
        """Move the slots to a block with work left, as ``_Loop.advance`` does."""
        left = F.pad(((self.canvas[pick] == self.model.mask_id) & inside).cumsum(1), (1, 0))
        counts = left.gather(1, edges[:, 1:]) - left.gather(1, edges[:, :-1])
        blocks = len(self.planned)
        each, index = torch.arange(blocks, device=pick.device), index + 1
        shifted = self.cache is not None and self.model.shift > 0
        planned = (index < self.planned[block.clamp(max=blocks - 1)]) | self.method.endless | shifted
        open_ = (counts > 0) & ((each > block[:, None]) | ((each == block[:, None]) & planned[:, None]))
        new = torch.where(open_, each, blocks).amin(1)
        asked = counts.gather(1, new.clamp(max=blocks - 1)[:, None])[:, 0]
        if self.method.scope == "canvas":
            asked = counts.sum(1) if self.cache is None else torch.where(new != block, counts.sum(1), asked)
        old = self.asked[pick]
        self.asked[pick] = torch.where(active, torch.where(new == blocks, 0, asked), old)
        self.done[pick] = self.done[pick] | (active & (new == blocks))
        self.index[pick] = torch.where(active, torch.where(new == block, index, 0), index - 1)
        self.block[pick] = torch.where(active, new, block)
        self.steps[pick] = steps + active

    # ---- the host ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, *key) -> None:
        """One step: a graph, captured when its shape first comes up."""
        if self.canvas.device.type != "cuda":
            return self.advance(*key)
        if key not in self.graphs:
            state = [self.canvas, self.block, self.index, self.steps, self.opened, self.done, self.asked, self.flags]
            if self.cache is not None:
                state += [*self.cache.keys, *self.cache.values]
            if previous := self.memory.get("previous"):
                state += [previous.place, previous.past, previous.logits]
            before = [tensor.clone() for tensor in state]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # compiles kernels and sets up libraries; its effects are undone
                for _ in range(2):
                    self.advance(*key)
            torch.cuda.current_stream().wait_stream(side)
            for tensor, old in zip(state, before, strict=True):
                tensor.copy_(old)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool[0]):
                self.advance(*key)
            self.graphs[key] = graph
        self.graphs[key].replay()

    def read(self) -> list[int]:
        """What the host has to know: each slot's next rows, steps, steps in the block and openings, then the flags."""
        numbers = torch.cat((self.asked, self.steps, self.index, self.opened, self.flags))
        self.host.copy_(numbers, non_blocking=True)
        if self.canvas.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
        return self.host.tolist()

    def fill(self, s: int, key: int | str, prompt: list[int], seed: int) -> None:
        length, width = self.config.length, self.canvas.shape[1]
        row = prompt + [self.model.mask_id] * length
        row += [self.model.eos_id] * (width - len(row))
        self.canvas[s] = torch.tensor(row).to(self.canvas.device, non_blocking=True)
        self.prompt[s], self.end[s], self.keys[s] = len(prompt), len(prompt) + length, sample_key(seed, key)
        self.asked[s] = self.first
        for counter in (self.block, self.index, self.steps, self.opened):
            counter[s] = 0
        self.done[s] = False

    def run(self, queue: Iterator, seed: int) -> Iterator[tuple[int | str, Output]]:
        """Decode every prompt of ``queue``; a slot that finishes takes the next one."""
        free, live = list(range(self.idle)), {}
        self.done.fill_(True)
        self.flags.zero_()
        self.picked = None
        asked, opening = {}, {}
        while True:
            while free and (sample := next(queue, None)) is not None:
                s = free.pop(0)
                self.fill(s, *sample, seed)
                live[s], asked[s], opening[s] = (sample[0], len(sample[1]), [0.0]), self.first, True
            if not live:
                return
            begun = time.perf_counter()
            first = [s for s in live if self.cache is None or opening[s]]
            for group, whole in ((first, True), ([s for s in live if s not in first], False)):
                if group:
                    numbers = self.step(group, whole, live, asked)
            every = len(self.done)
            seconds = (time.perf_counter() - begun) / len(live)
            for s in list(live):
                live[s][2][0] += seconds
                asked[s], opening[s] = numbers[s], not numbers[2 * every + s]
                if not asked[s]:
                    yield self.finish(s, live.pop(s), numbers[every + s], numbers[3 * every + s])
                    free.append(s)

    def step(self, group: list[int], whole: bool, live: dict, asked: dict) -> list[int]:
        """One step of some of the slots; what ``read`` gives afterwards."""
        batch = min(1 << (len(group) - 1).bit_length(), self.idle)
        slots = group + [self.idle] * (batch - len(group))
        if self.picked != slots:
            self.pick[:batch] = torch.tensor(slots).to(self.pick.device, non_blocking=True)
            self.picked = slots
        padded = any(live[s][1] + self.config.length < self.canvas.shape[1] for s in group)
        key = batch, capacity(sum(asked[s] for s in group)), padded, whole, slots == list(range(batch))
        self.launch(*key)
        *numbers, broken, held = self.read()
        if held:
            self.slow += 1
            self.flags[1] = 0
            self.advance(*key, exact=True)
            *numbers, broken, _ = self.read()
        if broken:
            raise UserError(f"the model's logits are not numbers in {self.model.dtype}; use bfloat16 or float32")
        return numbers

    def finish(self, s: int, sample: tuple, steps: int, opened: int) -> tuple[int | str, Output]:
        key, prompt, seconds = sample
        tokens = self.canvas[s, : prompt + self.config.length].tolist()
        forwards = {"full": opened, "suffix": 0, "block": steps - opened}
        return key, Output(tokens, tokens[prompt:], steps, forwards, seconds[0])
