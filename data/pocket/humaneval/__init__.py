"""Pocket HumanEval: a specification in words to a short Python function, scored by running hidden tests.

`sample(rng)` composes filters, maps and reductions over ints, strings and lists. Each operation has one
coding style, several wordings and random constants. The tests are the canonical solution's own results on
drawn inputs, edge cases first; `sample(rng, tests=False)` gives the same problem without their source.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from pocket.humaneval import control, integers, positions, text, twos
from pocket.humaneval.cases import draw_value, make_cases
from pocket.humaneval.draw import Draw, Spec

__all__ = ["FAMILIES", "Draw", "sample"]

PLAIN_NAMES = "f g h foo func solve task helper process compute calc run apply convert handle work main answer".split()
MAX_PROMPT, MAX_SOLUTION = 106, 112  # estimated tokens

FAMILIES: dict[str, tuple[Callable[[Draw], Spec], int]] = {  # builder, weight
    "ints": (integers.ints, 24),
    "range": (integers.ranges, 9),
    "chars": (text.chars, 14),
    "words": (text.words, 14),
    "chain": (control.chain, 14),
    "branch": (control.branch, 9),
    "loops": (control.loops, 6),
    "pairs": (twos.pairs, 10),
    "index": (positions.index, 14),
}

_NAMES = tuple(FAMILIES)
_WEIGHTS = tuple(weight for _, weight in FAMILIES.values())


def _tokens(text: str) -> int:
    """Estimated tokens under a 2,048-entry byte-pair encoding with single digits."""
    return (
        int(1.1 * len(re.findall(r"[A-Za-z]+", text)))
        + sum(c.isdigit() for c in text)
        + len(re.findall(r"[^\w\s]+|\n *", text))
        + len(re.findall(r" -?\d", text))
    )


def sample(rng: random.Random, tests: bool = True) -> dict:
    """One problem: entry_point, prompt, canonical_solution, test, family.

    `test` is the source of check(candidate), or "" without `tests`; the rest is the same either way.
    """
    while True:
        family = rng.choices(_NAMES, _WEIGHTS)[0]
        draw = Draw(rng)
        spec = FAMILIES[family][0](draw)
        spec.ints, spec.chars = draw.ints, draw.chars
        name = rng.choice(PLAIN_NAMES) if rng.random() < 0.45 else spec.name.rstrip("_")
        if any(name == arg for arg, _ in spec.args):
            name = "solve"
        shown = rng.choice((0, 0, 1, 1, 1, 2))
        seed = rng.getrandbits(64)
        head = f"def {name}({', '.join(arg for arg, _ in spec.args)}):\n"
        solution = "\n".join("    " + line for line in spec.body)
        scope: dict = {}
        exec(head + solution, scope)  # our own source
        function = scope[name]
        lines = [f'    """{spec.sentence}']
        for _ in range(shown):
            values = [draw_value(rng, kind, spec, rng.randint(2, 4)) for _, kind in spec.args]
            lines += [f"    >>> {name}({', '.join(map(repr, values))})", f"    {function(*values)!r}"]
        prompt = head + ("\n".join(lines) + '\n    """\n' if shown else lines[0] + '"""\n')
        if _tokens(prompt) > MAX_PROMPT or _tokens(solution) > MAX_SOLUTION:
            continue
        cases = make_cases(random.Random(seed), spec, function)
        if not cases:
            continue
        checks = "".join(f"    assert candidate({call}) == {value}\n" for call, value in cases.items())
        return {
            "entry_point": name,
            "prompt": prompt,
            "canonical_solution": solution,
            "test": "def check(candidate):\n" + checks if tests else "",
            "family": family,
        }
