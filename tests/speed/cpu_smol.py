"""Milliseconds a step of ``smol-dream`` on a laptop, by length and type of weights.

    python tests/speed/cpu_smol.py                       # after `make smol`
    python tests/speed/cpu_smol.py --tiny                # a dry run with pocket-dream

One prompt, JoT at its default on the whole canvas, the plain loop, all threads: the median over the first steps, in
which nearly all of the canvas is masked, so that later ones take less.
"""

from __future__ import annotations

import time

import common
import torch

import jot
from jot.tasks.text import encode, render

PROMPT = "How do I boil an egg?"
STEPS = 8


def steps(model, rule, length: int) -> list[float]:
    """Milliseconds of each of the first steps but the very first."""
    turns = [{"role": "user", "content": PROMPT}]
    made = jot.decode_steps(model, encode(model, [render(model, turns)])[0], rule, length=length)
    next(made)
    found = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        next(made)
        found.append(1e3 * (time.perf_counter() - begun))
    return found


def main() -> None:
    options = common.parser(__doc__.splitlines()[0]).parse_args()
    device, budget, rows = torch.device("cpu"), common.Budget(options.seconds), []
    found = common.machine(device, options.tiny)
    rule = jot.FullDecoding() if options.tiny else jot.JoT(90.0)  # pocket-dream would end before it is measured
    print(common.headline(found), flush=True)
    for dtype in ("bfloat16", "float32"):
        model = jot.load("pocket-dream" if options.tiny else "smol-dream", device="cpu", dtype=dtype)
        for length in (64, 128) if options.tiny else (64, 128, 256):
            if budget.has(f"{dtype}, {length} tokens"):
                row = {"dtype": dtype, "threads": torch.get_num_threads(), "length": length}
                rows.append(row | {"step_ms": common.spread(steps(model, rule, length))})
                common.write(options, "cpu_smol", found, rows, skipped=budget.skipped)
    common.show("Milliseconds a step", rows, ("dtype", "threads", "length", "step_ms"))


if __name__ == "__main__":
    main()
