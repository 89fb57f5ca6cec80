"""The one denoising loop. Every method runs through it, so token counts and timings are comparable.

A step proposes a token for each masked row, asks the exit rule which positions are final, lets the schedule choose its
share, and commits the union. ``jot.fast`` runs the same steps with fixed shapes: the default on CUDA.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from jot.cache import KVCache, View
from jot.checks import whole
from jot.config import DecodeConfig, check_samples, check_tokens, rows_of
from jot.errors import UserError
from jot.exits import rule_of
from jot.models.base import DiffusionModel
from jot.proposals import PROPOSALS, KeyedDraws, committed, sample_key, scheduled
from jot.schedules import SCHEDULES, entry
from jot.step import Step

LOG = logging.getLogger("jot")
SCHEDULED, EXITED = 1, 2  # bits of Trace.rule
KINDS = {None: "full", "prefix": "suffix", "dual": "block"}  # forwards by the part of the canvas they run on


@dataclass
class Trace:
    """How one canvas was filled; arrays over the L generated positions and over the forwards.

    Attributes:
        step: forward after which each position was committed, from 0; ``[L]``.
        rule: bit 1 = chosen by the schedule, bit 2 = exited; ``[L]``.
        margin: top-2 logit margin at the commit, in nats; ``[L]``.
        threshold: margin that the exit rule asked for then, nan where it had none; ``[L]``.
        mean_margin: mean margin of the masked rows read by each forward; ``[forwards]``.
        masked: masks on the canvas before each forward; ``[forwards]``.
    """

    step: np.ndarray
    rule: np.ndarray
    margin: np.ndarray
    threshold: np.ndarray
    mean_margin: list[float] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)

    @classmethod
    def empty(cls, length: int) -> Trace:
        nan = np.full(length, np.nan, dtype=np.float32)
        return cls(np.full(length, -1, np.int16), np.zeros(length, np.uint8), nan.copy(), nan.copy())


@dataclass
class Output:
    """One decoded sample.

    Attributes:
        tokens: the canvas, prompt included.
        generated: the generated part of it.
        steps: denoising steps, that is forwards of any kind.
        forwards: forwards by kind.
        seconds: this sample's share of the time of its steps; capturing graphs is not counted.
        trace: how the canvas was filled, where asked for.
        loop: "plain", or "fast" for that of ``jot.fast``.
    """

    tokens: list[int]
    generated: list[int]
    steps: int
    forwards: dict[str, int]
    seconds: float
    trace: Trace | None = None
    loop: str = "plain"


@dataclass
class _Slot:
    """Progress of the sample in one row of the batch."""

    key: int | str
    prompt: int  # tokens of the prompt
    trace: Trace | None
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


class _Loop:
    """Slots of one batch; ``run`` decodes until every sample is done, refilling slots as they free up."""

    def __init__(self, model, config: DecodeConfig, method, slots: int, width: int, trace: bool, draws):
        self.model, self.config, self.method, self.draws = model, config, method, draws
        self.want_trace = trace
        self.canvas = torch.full((slots, width), model.eos_id, dtype=torch.long, device=model.device)
        self.given = torch.zeros_like(self.canvas, dtype=torch.bool)
        self.keys = torch.zeros(slots, dtype=torch.long, device=model.device)
        self.slots: list[_Slot | None] = [None] * slots
        self.banned = torch.tensor(sorted({model.mask_id, *config.suppress_tokens}), device=model.device)
        self.cache = KVCache(slots, width) if config.cache else None
        self.memory: dict = {"shape": (slots, width)}

    def fill(self, s: int, key: int | str, prompt: list[int]) -> None:
        """Start a sample in slot ``s``: prompt, then the masks, then padding that the key mask hides."""
        row = prompt + [self.model.mask_id] * self.config.length
        for offset, token in self.config.constraints:
            row[len(prompt) + offset] = token
        self.canvas[s] = self.model.eos_id
        self.canvas[s, : len(row)] = torch.tensor(row, device=self.canvas.device)
        self.given[s] = self.canvas[s] != self.model.mask_id
        self.keys[s] = sample_key(self.config.seed, key)
        self.slots[s] = _Slot(key, len(prompt), Trace.empty(self.config.length) if self.want_trace else None)

    def advance(self, s: int, masked: np.ndarray) -> bool:
        """Move slot ``s`` to a block with work left; False when the sample is done. ``masked``: its canvas row."""
        slot, config = self.slots[s], self.config
        while slot.block < len(config.blocks):
            start, end = (slot.prompt + edge for edge in config.blocks[slot.block])
            masks = int(masked[start:end].sum())
            if slot.plan is None:
                slot.plan = SCHEDULES[config.schedule](masks, config.block_steps, config.eps)
            # The forward that opens a cached block of a shifted model spends an entry of the plan on one token, so a
            # plan of counts may run out early: it goes on (``schedules.entry``).
            shifted = self.cache is not None and self.model.shift and slot.plan.dtype.kind != "f"
            planned = slot.index < len(slot.plan) or (masks and (self.method.endless or shifted))
            owed = config.extra_in_block and self.cache is not None and slot.index == 1
            if owed or planned and (masks or not config.stop_early):
                return True
            slot.block, slot.index, slot.plan = slot.block + 1, 0, None
        return False

    def finish(self, s: int) -> tuple[int | str, Output]:
        slot, self.slots[s] = self.slots[s], None
        tokens = self.canvas[s, : slot.prompt + self.config.length].tolist()
        return slot.key, Output(tokens, tokens[slot.prompt :], slot.steps, slot.forwards, slot.seconds, slot.trace)

    def run(self, queue: Iterator[tuple[int | str, list[int]]]) -> Iterator[tuple[int | str, Output]]:
        waiting = True
        while True:
            for s, slot in enumerate(self.slots):
                if slot is None and waiting:
                    if waiting := (sample := next(queue, None)) is not None:
                        self.fill(s, *sample)
            live = [s for s, slot in enumerate(self.slots) if slot is not None]
            if not live:
                return
            masked = (self.canvas == self.model.mask_id).cpu().numpy()
            done = [s for s in live if not self.advance(s, masked[s])]
            for s in done:
                yield self.finish(s)
            if not done:  # under a cache, the slots that open a block and those within one go apart
                opening = [s for s in live if self.cache is None or self.slots[s].index == 0]
                for group, whole in ((opening, True), ([s for s in live if s not in opening], False)):
                    if group:
                        self.step(group, whole)

    @torch.inference_mode()
    def step(self, group: list[int], whole: bool) -> None:
        """One forward for some of the slots, over the whole canvas or a cached block, and its commits."""
        begun = time.perf_counter()
        config, slots = self.config, [self.slots[s] for s in group]
        step, edges = self.read(group, slots, whole)
        if step.top.total.isnan().any():
            raise UserError(f"the model's logits are not numbers in {self.model.dtype}; use bfloat16 or float32")
        step.proposal = PROPOSALS[config.proposal](step, config, self.draws)
        exits, threshold = self.method(step)
        if whole and self.cache is not None and self.model.shift:
            # Within the block, what predicts its first position lies outside: that position is committed now, alone.
            chosen = step.in_block & (step.position == edges[step.slot, 0])
            exits = exits if self.method.block_start else step.none()
        else:
            chosen = scheduled(step, self.method, config, self.draws, exits, slots[0].plan.dtype.kind == "f")
        commit = exits | chosen
        token = committed(step, self.method, exits)
        self.canvas[step.homes[step.slot[commit]], step.position[commit]] = token[commit]

        if self.want_trace:
            self.record(slots, step, exits, chosen, threshold)
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
            end=end, homes=pick, whole=whole, steps=config.steps, memory=self.memory,
        )  # fmt: skip
        return step, edges

    def record(self, slots: list[_Slot], step: Step, exits: Tensor, chosen: Tensor, threshold: Tensor | None) -> None:
        row, position = step.slot.cpu().numpy(), step.position.cpu().numpy()
        gap = step.top.gap.float().cpu().numpy()
        rule = (chosen * SCHEDULED + exits * EXITED).cpu().numpy()
        limit = np.full(len(row), np.nan) if threshold is None else threshold.float().cpu().numpy()
        masked, read = step.masks.sum(1).tolist(), step.at(step.masks).cpu().numpy()
        for s, slot in enumerate(slots):
            mine = (row == s) & read
            slot.trace.mean_margin.append(float(gap[mine].mean()) if mine.any() else float("nan"))
            slot.trace.masked.append(masked[s])
            hit = mine & (rule > 0)
            at = position[hit] - slot.prompt
            slot.trace.step[at], slot.trace.rule[at] = slot.steps, rule[hit]
            slot.trace.margin[at], slot.trace.threshold[at] = gap[hit], limit[hit]


def decode_stream(
    model: DiffusionModel,
    samples: Iterable[tuple[int | str, Sequence[int]]],
    method=None,
    *,
    slots: int = 1,
    trace: bool = False,
    draws=None,
    **parameters,
) -> Iterator[tuple[int | str, Output]]:
    """Decode many samples through ``slots`` rows; a row that finishes takes the next prompt.

    Args:
        model: from ``jot.load``.
        samples: pairs of a sample key (int or str; it keys the random draws) and prompt token ids.
        method: exit rule, from ``jot.exits``; None is full decoding.
        slots: rows of the batch. Each sample equals its solo run up to rounding of the forward.
        trace: record how each canvas was filled.
        draws: source of random numbers, keyed by default.
        **parameters: fields of ``DecodeConfig``.

    Yields:
        (sample key, ``Output``) as samples finish.

    Raises:
        UserError: an invalid parameter or prompt, before the first forward.
    """
    whole("", "slots", slots, low=1)
    config = DecodeConfig.of(parameters).resolve(model)
    method = rule_of(method)
    check_tokens(model, config)
    prompts = check_samples(model, config, samples)
    if not prompts:
        return
    # Longest first: the batch is only as wide as its longest live row, so it narrows as it goes.
    prompts.sort(key=lambda sample: -len(sample[1]))
    slots = min(slots, len(prompts))
    width = len(prompts[0][1]) + config.length
    from jot import fast  # not at the top: it is built on this module

    reason = fast.refusal(model, config, method, slots, draws)
    if reason is None:
        yield from fast.stream(model, config, method, slots, width, trace, prompts)
        return
    if reason != fast.UNASKED:
        LOG.info("%s runs in the plain loop: %s", method.name, reason)
    yield from _Loop(model, config, method, slots, width, trace, draws or KeyedDraws()).run(iter(prompts))


def decode(
    model: DiffusionModel,
    prompt_ids: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    method=None,
    *,
    sample_id: int | str = 0,
    **kwargs,
) -> Output | list[Output]:
    """Decode one prompt (token ids) or a batch of prompts, which need not be of one length.

    Takes the arguments of ``decode_stream``, and refuses what it does. Samples of a batch have the keys 0, 1, ...; a
    single prompt has ``sample_id``. Returns an ``Output``, or a list of them for a batch.
    """
    rows = rows_of(prompt_ids)
    if rows and hasattr(rows[0], "__len__"):
        done = dict(decode_stream(model, list(enumerate(rows)), method, **{"slots": len(rows), **kwargs}))
        return [done[i] for i in range(len(rows))]
    return dict(decode_stream(model, [(sample_id, rows)], method, **kwargs))[sample_id]
