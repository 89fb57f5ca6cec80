"""What a decoding gives: the canvas, its forwards, and the trace of how it was filled."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

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
        of text stands for the masks.
        """
        generated = tokens[prompt:]
        if config.stop_at_eos and ended(np.array(generated), model.mask_id, model.eos_id):
            generated = [model.eos_id if token == model.mask_id else token for token in generated]
        return cls(tokens[:prompt] + generated, generated, *rest)
