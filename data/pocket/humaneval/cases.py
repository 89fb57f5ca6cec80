"""Drawn inputs of a function, and the calls that its hidden tests make."""

from __future__ import annotations

import random
from collections.abc import Callable

from pocket.humaneval.draw import Spec

WORDS = (
    "apple bear cat dog egg fish goat hat ice jam kite lamp moon nest owl pear queen rain sun tree urn van "
    "wolf yak an as be in of on to area book cool door moss noon tall well level pop did eye a I zoo "
    "Anna Bob Eve Kim Otto Sue RED Up"
).split()
CHARS = "aaabcdeeefghiiklmnoopqrsstuuwxyzABDEIOS1279"


def draw_value(rng: random.Random, kind: str, spec: Spec, size: int):
    """A drawn input of a kind; `size` is the length or, for integers, 0 for zero."""

    def integer() -> int:
        if spec.ints and rng.random() < 0.4:
            return rng.choice(spec.ints) + rng.choice((-1, 0, 0, 1))
        return rng.randint(-9, 24)

    if kind == "ints":
        drawn = [integer() for _ in range(size)]
        for i in range(1, size):  # some repeats, for duplicates and equal neighbors
            if rng.random() < 0.08:
                drawn[i] = drawn[rng.randrange(i)]
        return drawn
    if kind == "int":
        return integer() if size else 0
    if kind == "nat":
        return rng.randint(1, 14) if size and rng.random() < 0.7 else rng.randint(10, 40) if size else 0
    if kind == "pos":
        return rng.randint(1, 30) if size else 1
    if kind == "digits":
        return rng.randint(1, 10 ** min(size, 6)) if size else 0
    if kind in ("text", "strs"):
        words = [rng.choice(WORDS) for _ in range(size)]
        if spec.chars:
            a, b = rng.choice(spec.chars), rng.choice(spec.chars)
            words = [w if rng.random() < 0.6 else rng.choice((a + w, w + b, a + w + b)) for w in words]
        return " ".join(words) if kind == "text" else words
    pool = CHARS + spec.chars * 6
    return "".join(rng.choice(pool) for _ in range(size))


def make_cases(rng: random.Random, spec: Spec, function: Callable) -> dict[str, str]:
    """Calls and results, at least four: two small inputs, then drawn ones.

    {} if no round of draws tells the function from a constant or, for one argument, from the identity.
    """
    for _ in range(4):
        cases: dict[str, str] = {}
        for i in range(rng.randint(6, 8)):
            size = i if i < 2 else rng.randint(3, 9)
            values = [draw_value(rng, kind, spec, min(size, 5) if kind == "text" else size) for _, kind in spec.args]
            if len(values) == 2 and isinstance(values[0], list):
                values[1] = [x if rng.random() < 0.2 else y for x, y in zip(*values, strict=True)]
            call = ", ".join(map(repr, values))
            cases[call] = repr(function(*values))
        results = set(cases.values())
        varied = len(results) >= 3 or results == {"True", "False"}
        if varied and len(cases) >= 4 and any(call != value for call, value in cases.items()):
            return cases
    return {}
