"""What ``stop_at_eos`` may change of a run, and what not."""

from __future__ import annotations

import numpy as np


def check_stop(full, short, mask_id: int, eos_id: int) -> None:
    """``short``, decoded with ``stop_at_eos``, is ``full`` up to the first step after which the text has ended.

    Both traced. The text has ended once its first end of text has no mask before it; where it never has, both agree.
    """
    text, step, steps = np.array(full.generated), full.trace.step, full.steps
    stops = np.flatnonzero((text == eos_id) | (text == mask_id))
    end = stops[0] if len(stops) and text[stops[0]] == eos_id else None
    if end is not None:
        steps = int(step[: end + 1].max()) + 1
        assert short.generated[: end + 1] == full.generated[: end + 1]
    taken = (step < steps) & (full.trace.rule > 0)
    fixed = full.trace.rule == 0  # constraints, and masks that a rule has left
    rest = np.where(fixed | taken, text, eos_id) if end is not None else text
    if end is not None:
        rest[fixed & (rest == mask_id)] = eos_id
    assert short.generated == rest.tolist() == short.tokens[-len(text) :]
    assert short.steps == steps == sum(short.forwards.values()) <= full.steps
    assert all(short.forwards[kind] <= count for kind, count in full.forwards.items())
    assert short.trace.masked == full.trace.masked[:steps]
    assert short.trace.step.tolist() == np.where(taken, step, -1).tolist()
    assert short.trace.rule.tolist() == np.where(taken, full.trace.rule, 0).tolist()
    assert np.isnan(short.trace.margin[~taken]).all()
