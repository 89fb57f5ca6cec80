"""The one denoising loop. Every method runs through it, so token counts and timings are comparable.

A step proposes a token for each masked row, asks the exit rule which positions are final, lets the schedule choose its
share, and commits the union. ``jot.fast`` runs the same steps with fixed shapes: the default on CUDA.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from jot.errors import UserError
from jot.sampler.cache import KVCache, View
from jot.sampler.output import KINDS, Output, Trace, Traces, ended
from jot.sampler.proposals import PROPOSALS, committed, decide, sample_key
from jot.sampler.schedules import SCHEDULES, entry
from jot.sampler.step import Step

if TYPE_CHECKING:
    from jot.sampler.config import DecodeConfig


@dataclass
class _Slot:
    """Progress of the sample in one row of the batch."""

    key: int | str
    prompt: int  # tokens of the prompt
    block: int = 0
    index: int = 0  # step within the block
    seconds: float = 0.0
    plan: np.ndarray | None = None
    forwards: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS.values(), 0))

    @property
    def steps(self) -> int:
        return sum(self.forwards.values())


def predict(model, config: DecodeConfig, banned, canvas, given, key_mask, row, position, view, hidden=None) -> Tensor:
    """Logits of the asked rows, at least float32, guided if asked for, with the ``banned`` tokens at minus infinity.

    ``given``: what guidance hides, bool like ``canvas``; None without it. The rest is as in ``DiffusionModel.predict``.
    """
    scale, dtype = config.guidance, getattr(torch, config.head_dtype)
    if scale > 0:
        both = torch.cat((canvas, canvas.masked_fill(given, model.mask_id)))
        mask = None if key_mask is None else key_mask.repeat(2, 1)
        rows, positions = torch.cat((row, row + len(canvas))), position.repeat(2)
        with_prompt, bare = model.predict(both, mask, rows, positions, dtype, hidden=hidden).chunk(2)
        logits = bare + (scale + 1) * (with_prompt - bare)
    else:
        logits = model.predict(canvas, key_mask, row, position, dtype, view, hidden)
    logits = logits.float() if logits.dtype != torch.float64 else logits
    return logits.index_fill_(1, banned, -torch.inf)


class Loop:
    """Slots of one batch; ``run`` decodes until every sample is done, refilling slots as they free up."""

    def __init__(self, model, config: DecodeConfig, method, slots: int, width: int, trace: bool, draws):
        self.model, self.config, self.method, self.draws = model, config, method, draws
        self.traces = Traces(slots, width, config, model.device) if trace else None
        self.canvas = torch.full((slots, width), model.eos_id, dtype=torch.long, device=model.device)
        self.given = torch.zeros_like(self.canvas, dtype=torch.bool)
        self.keys = torch.zeros(slots, dtype=torch.long, device=model.device)
        self.slots: list[_Slot | None] = [None] * slots
        self.banned = torch.tensor(sorted({model.mask_id, *config.suppress_tokens}), device=model.device)
        self.cache = KVCache(slots, width) if config.cache else None
        demoted = config.begin_suppress_tokens if method.skip_demoted else ()
        self.demoted = torch.tensor(demoted, device=model.device) if demoted else None
        self.memory = method.remember(model, config, slots, width)

    def fill(self, s: int, key: int | str, prompt: list[int]) -> None:
        """Start a sample in slot ``s``: prompt, then the masks, then padding that the key mask hides."""
        row = prompt + [self.model.mask_id] * self.config.length
        for offset, token in self.config.constraints:
            row[len(prompt) + offset] = token
        self.canvas[s] = self.model.eos_id
        self.canvas[s, : len(row)] = torch.tensor(row, device=self.canvas.device)
        self.given[s] = self.canvas[s] != self.model.mask_id
        self.keys[s] = sample_key(self.config.seed, key)
        self.slots[s] = _Slot(key, len(prompt))
        if self.traces is not None:
            self.traces.clear(s)

    def advance(self, s: int, row: np.ndarray) -> bool:
        """Move slot ``s`` to a block with work left; False when the sample is done. ``row``: its canvas."""
        slot, config = self.slots[s], self.config
        generated = row[slot.prompt : slot.prompt + config.length]
        if config.stop_at_eos and ended(generated, self.model.mask_id, self.model.eos_id):
            return False
        masked = generated == self.model.mask_id
        kept = config.keep_steps and masked.any()
        while slot.block < len(config.blocks):
            start, end = config.blocks[slot.block]
            masks = int(masked[start:end].sum())
            if slot.plan is None:
                slot.plan = SCHEDULES[config.schedule](masks, config.block_steps, config.eps)
                if config.keep_steps and not masks:  # a block that begins full has nothing planned
                    slot.plan = slot.plan[:0]
            # The forward that opens a cached block of a shifted model spends an entry of the plan on one token, so a
            # plan of counts may run out early: it goes on (``schedules.entry``).
            shifted = self.cache is not None and self.model.shift and slot.plan.dtype.kind != "f"
            planned = slot.index < len(slot.plan) or (masks and (self.method.endless or shifted))
            owed = config.extra_in_block and self.cache is not None and slot.index == 1
            if owed or planned and (masks or kept or not config.stop_early):
                return True
            slot.block, slot.index, slot.plan = slot.block + 1, 0, None
        return False

    def trace(self, s: int) -> Trace | None:
        """How the canvas in slot ``s`` has been filled so far, where that is kept."""
        slot = self.slots[s]
        return self.traces and self.traces.read(s, slot.prompt, slot.prompt + self.config.length, slot.steps)

    def finish(self, s: int) -> tuple[int | str, Output]:
        slot, trace = self.slots[s], self.trace(s)
        self.slots[s] = None
        tokens = self.canvas[s, : slot.prompt + self.config.length].tolist()
        rest = slot.steps, slot.forwards, slot.seconds, trace
        return slot.key, Output.of(self.model, self.config, tokens, slot.prompt, *rest)

    def run(self, queue: Iterator[tuple[int | str, list[int]]]) -> Iterator[tuple[int | str, Output] | None]:
        """The samples as they finish, and None after each step."""
        waiting = True
        while True:
            for s, slot in enumerate(self.slots):
                if slot is None and waiting:
                    if waiting := (sample := next(queue, None)) is not None:
                        self.fill(s, *sample)
            live = [s for s, slot in enumerate(self.slots) if slot is not None]
            if not live:
                return
            rows = self.canvas.cpu().numpy()
            done = [s for s in live if not self.advance(s, rows[s])]
            for s in done:
                yield self.finish(s)
            if not done:  # under a cache, the slots that open a block and those within one go apart
                opening = [s for s in live if self.cache is None or self.slots[s].index == 0]
                for group, whole in ((opening, True), ([s for s in live if s not in opening], False)):
                    if group:
                        self.step(group, whole)
                yield None

    @torch.inference_mode()
    def step(self, group: list[int], whole: bool) -> None:
        """One forward for some of the slots, over the whole canvas or a cached block, and its commits."""
        begun = time.perf_counter()
        config, slots = self.config, [self.slots[s] for s in group]
        step, edges = self.read(group, slots, whole)
        if step.top.total.isnan().any():
            raise UserError(self.model.not_numbers())
        step.proposal = PROPOSALS[config.proposal](step, config, self.draws)
        opening = edges[:, 0] if whole and self.cache is not None and self.model.shift else None
        fraction = slots[0].plan.dtype.kind == "f"
        exits, chosen, threshold = decide(step, self.method, config, self.draws, fraction, opening)
        commit = exits | chosen
        token = committed(step, self.method, exits)
        self.canvas[step.homes[step.slot[commit]], step.position[commit]] = token[commit]

        if self.traces is not None:
            self.traces.record(step, torch.ones_like(commit), exits, chosen, commit, threshold)
        kind = KINDS[None if whole else config.cache]
        seconds = (time.perf_counter() - begun) / len(slots)
        for slot in slots:
            slot.index, slot.seconds = slot.index + 1, slot.seconds + seconds
            slot.forwards[kind] += 1

    def read(self, group: list[int], slots: list[_Slot], whole: bool) -> tuple[Step, Tensor]:
        """The forward of a step and what it shows, and the edges of each slot's block ``[slots, 2]``."""
        config, device = self.config, self.canvas.device
        prompt = torch.tensor([slot.prompt for slot in slots], device=device)
        end = prompt + config.length
        width = max(slot.prompt for slot in slots) + config.length
        pick = torch.tensor(group, device=device)
        canvas = self.canvas[pick, :width]
        column = torch.arange(width, device=device)
        inside = column < end[:, None]
        masks = (canvas == self.model.mask_id) & inside
        edges = prompt[:, None] + torch.tensor([config.blocks[slot.block] for slot in slots], device=device)
        in_block = masks & (column >= edges[:, :1]) & (column < edges[:, 1:])

        asked = masks if self.method.scope == "canvas" and whole else in_block
        extra = self.method.extra_rows(masks, prompt, end) if whole else None
        row, position = (asked if extra is None else asked | extra).nonzero(as_tuple=True)
        view = None
        if self.cache is not None:
            within = None
            if not whole:
                stop = edges[:, 1] if config.cache == "dual" else end
                size = int((stop - edges[:, 0]).max())
                within = edges[:, :1] + torch.arange(size, device=device)
                within = torch.where(within < stop[:, None], within, width)
            view = View(self.cache, pick, width, within, straight=group == list(range(len(group))))
        equal = len({slot.prompt for slot in slots}) == 1
        key_mask = None if equal else inside
        given = self.given[pick, :width] if config.guidance > 0 else None
        logits = predict(self.model, config, self.banned, canvas, given, key_mask, row, position, view)
        plans = [entry(slot.plan, slot.index) for slot in slots]
        step = Step(
            logits, row, position, in_block[row, position], masks, ~masks & inside,
            index=torch.tensor([slot.steps for slot in slots], device=device),
            block_index=torch.tensor([slot.index for slot in slots], device=device),
            share=torch.tensor(plans, dtype=torch.float32, device=device), keys=self.keys[pick], prompt=prompt,
            end=end, homes=pick, whole=whole, steps=config.steps, memory=self.memory, demoted=self.demoted,
        )  # fmt: skip
        return step, edges
