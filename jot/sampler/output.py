"""What a decoding gives: the canvas, its forwards, and the trace of how it was filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from jot.sampler.schedules import count

if TYPE_CHECKING:
    from jot.sampler.config import DecodeConfig
    from jot.sampler.step import Step

SCHEDULED, EXITED = 1, 2  # bits of Trace.rule
KINDS = {None: "full", "prefix": "suffix", "dual": "block"}  # forwards by the part of the canvas they run on


def ended(generated: np.ndarray, mask_id: int, eos_id: int) -> bool:
    """Whether a generated part ``[L]`` holds an end of text with no mask before it."""
    return bool(generated[((generated == mask_id) | (generated == eos_id)).argmax()] == eos_id)


@dataclass
class Trace:
    """How one canvas was filled; arrays over the L generated positions and over the forwards.

    Attributes:
        step: forward after which each position was committed, from 0; -1 where none did, what ``constraints`` wrote and
            the masks behind the end of text of ``stop_at_eos``, which have rule 0 and no margin; ``[L]``.
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
    mean_margin: list[float]
    masked: list[int]


class Traces:
    """The traces of every batch row, kept on the device until a sample ends."""

    def __init__(self, samples: int, width: int, config: DecodeConfig, device):
        def table(columns: int, fill: float, dtype=torch.float32) -> Tensor:
            return torch.full((samples, columns), fill, dtype=dtype, device=device)

        most = config.steps + config.length + 2 * len(config.blocks)  # forwards that a sample may take
        self.step, self.rule = table(width, -1, torch.int16), table(width, 0, torch.uint8)
        self.margin, self.threshold = table(width, torch.nan), table(width, torch.nan)
        self.mean, self.masked = table(most, torch.nan), table(most, 0, torch.int16)

    def clear(self, s: int) -> None:
        for tensor, fill in ((self.step, -1), (self.rule, 0), (self.margin, torch.nan), (self.threshold, torch.nan)):
            tensor[s] = fill

    def record(self, step: Step, live: Tensor, exits: Tensor, chosen: Tensor, commit: Tensor, threshold) -> None:
        """What the ``live`` rows of a step show, and what it commits; one that is taken again overwrites its own."""
        gap = step.margin
        place = step.homes[step.slot], step.position
        rule = (chosen * SCHEDULED + exits * EXITED).to(torch.uint8)
        news = [(self.step, step.index[step.slot].short()), (self.rule, rule), (self.margin, gap.float())]
        if threshold is not None:
            news.append((self.threshold, threshold.float()))
        for table, new in news:
            table.index_put_(place, torch.where(commit, new, table[place]))
        slots, at = len(step.masks), (step.homes, step.index.clamp(max=self.mean.shape[1] - 1))
        read = live & step.at(step.masks)
        total = torch.zeros(slots, dtype=torch.float64, device=gap.device)
        total.index_add_(0, step.slot, torch.where(read, gap, 0).double())
        self.mean.index_put_(at, (total / count(step.slot, read, slots)).float())
        self.masked.index_put_(at, step.masks.sum(1).short())

    def read(self, s: int, start: int, end: int, steps: int) -> Trace:
        """The trace of a row whose generated part is ``start`` to ``end``, after so many steps."""
        filled = (t[s, start:end].cpu().numpy().copy() for t in (self.step, self.rule, self.margin, self.threshold))
        return Trace(*filled, *(t[s, :steps].tolist() for t in (self.mean, self.masked)))


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
        loop: "plain", or "fast" for that of ``jot.fast.loop``.
    """

    tokens: list[int]
    generated: list[int]
    steps: int
    forwards: dict[str, int]
    seconds: float
    trace: Trace | None = None
    loop: str = "plain"

    @classmethod
    def of(cls, model, config, tokens: list[int], prompt: int, *rest) -> Output:
        """From a canvas, the length of its prompt and the fields from ``steps`` on; behind a text that has ended, end
        of text stands for the masks."""
        generated = tokens[prompt:]
        if config.stop_at_eos and ended(np.array(generated), model.mask_id, model.eos_id):
            generated = [model.eos_id if token == model.mask_id else token for token in generated]
        return cls(tokens[:prompt] + generated, generated, *rest)
