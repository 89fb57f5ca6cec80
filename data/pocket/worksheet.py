"""Worksheets: many short problems in one prompt, answered in order with worked solutions, so that the answer fills a
canvas of any length. Problems are numbered, and each has one to four steps on numbers below 100.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container

NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gus", "Hana")
ITEMS = ("pens", "cups", "keys", "figs", "maps", "rocks", "bags", "nuts")
GAINS, LOSSES = ("buys", "finds", "wins"), ("gives", "loses", "sells")
LIMIT = 99
LABELS = 96  # no worksheet's numbers go beyond
FILL = (0.55, 0.97)  # of the canvas by the answers


def problem(rng: random.Random) -> tuple[str, str, int]:
    """Question without its number, worked solution, final number."""
    name, item, value = rng.choice(NAMES), rng.choice(ITEMS), rng.randint(2, 60)
    said, worked = [f"{name} has {value} {item}"], []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4))):
        kinds = ["gain"] * (2 * (value < LIMIT)) + ["loss"] * 2 * (value > 2) + ["double"] * (2 * value <= LIMIT)
        kinds += ["triple"] * (3 * value <= LIMIT) + ["half"] * (value % 2 == 0 and value > 2)
        kind = rng.choice(kinds)
        if kind == "gain":
            other = rng.randint(1, min(40, LIMIT - value))
            words, sign, new = f"{rng.choice(GAINS)} {other}", f"+ {other}", value + other
        elif kind == "loss":
            other = rng.randint(1, min(40, value - 1))
            words, sign, new = f"{rng.choice(LOSSES)} {other}", f"- {other}", value - other
        elif kind == "half":
            words, sign, new = "halves them", "/ 2", value // 2
        else:
            times = 2 if kind == "double" else 3
            words, sign, new = f"{kind}s them", f"* {times}", times * value
        said.append(words)
        worked.append(f"{value} {sign} = {new}")
        value = new
    return ", ".join(said), f"{', '.join(worked)}.", value


def sample(
    rng: random.Random, length: int, tokens: Callable[[str], int], skip: Container[str] = frozenset(), first: int = 1
) -> dict:
    """A worksheet whose answer takes a random share of ``length`` tokens within ``FILL``; none of its problems is in
    ``skip``. ``tokens`` counts those of a text; the problems are numbered from ``first`` on.
    """
    goal, used, lines = rng.uniform(*FILL) * length, 0, []
    while True:
        question, worked, final = problem(rng)
        if question in skip:
            continue
        answer = f"{first + len(lines)}: {worked}\n"
        used += tokens(answer)
        if used > goal and lines:
            break
        lines.append((question, answer, final))
    assert first + len(lines) - 1 <= LABELS, "more problems than labels"
    return {
        "question": "".join(f"{i}: {question}.\n" for i, (question, _, _) in enumerate(lines, first)),
        "answer": "".join(answer for _, answer, _ in lines), "finals": [str(final) for *_, final in lines],
    }  # fmt: skip
