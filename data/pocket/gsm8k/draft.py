"""A word problem under construction, and the words and the arithmetic that all families share."""

from __future__ import annotations

import random

NAMES = {
    "she": "Mia Ana Eva Zoe Ivy Lily Nina Kate Emma Rosa Maya Ruth Tara Lucy Jane Sara".split(),
    "he": "Tom Leo Sam Max Ben Dan Omar Raj Hugo Paul Ivan Noah Adam Luke Carl Eli".split(),
}
PRONOUN = {name: pronoun for pronoun, names in NAMES.items() for name in names}
ALL_NAMES = sorted(PRONOUN)
ITEMS = (
    "apples pens cards coins stamps marbles shells cookies eggs plums toys tickets stickers buttons beads "
    "pencils candles lemons peaches roses badges crayons balloons muffins"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
TIMES = {
    2: ("twice", "double"),
    3: ("three times", "triple"),
    4: ("four times",),
    5: ("five times",),
    6: ("six times",),
}
PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}


class Reject(Exception):
    """The draft holds a number or a length out of range: draw again."""


class Draft:
    """A problem under construction: the sentences, the question and the equations."""

    def __init__(self, rng: random.Random, target: int) -> None:
        self.rng, self.target = rng, target
        self.names = rng.sample(ALL_NAMES, 8)
        self.items = rng.sample(ITEMS, 5)
        self.sentences: list[str] = []
        self.question = ""
        self.steps: list[tuple[str, int]] = []
        self.needed: dict[int, int] = {}  # people whose amounts the solution uses
        self.unused = 0  # sentences with a number that the solution does not need

    def pick(self, *options):
        """One of the options, with one draw of random()."""
        return options[int(self.rng.random() * len(options))]

    def num(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def say(self, *wordings: str) -> None:
        text = self.pick(*wordings)
        self.sentences.append(text[0].upper() + text[1:])

    def ask(self, *wordings: str) -> None:
        self.question = self.pick(*wordings)

    def calc(self, a: int, op: str, b: int, label: str = "") -> int:
        """Append one equation and return its result; reject results outside 1..9999 and inexact divisions."""
        if op == "/" and (b == 0 or a % b):
            raise Reject
        if op == "*" and not _easy_product(a, b):
            raise Reject
        value = a + b if op == "+" else a - b if op == "-" else a * b if op == "*" else a // b
        if not 1 <= value <= 9999:
            raise Reject
        self.steps.append((f"{label}: {a} {op} {b} = {value}" if label else f"{a} {op} {b} = {value}", value))
        return value

    @property
    def left(self) -> int:
        """Equations that are still wanted."""
        return self.target - len(self.steps)


def _easy_product(a: int, b: int) -> bool:
    """Two digits times one, small two-digit factors, three digits doubled or tripled, a round percentage."""
    low, high = min(a, b), max(a, b)
    return (
        (low <= 9 and high <= 99) or a * b <= 400 or (low <= 3 and high <= 400) or b in (10, 20, 25, 30, 40, 50, 60, 75)
    )


def possessive(name: str) -> str:
    """The word "her" or "his"."""
    return "her" if PRONOUN[name] == "she" else "his"


def divisor(d: Draft, value: int, options: tuple[int, ...] = (2, 3, 4, 5)) -> int:
    """One of `options` that divides `value` and leaves at least 2; reject the draft if there is none."""
    fit = [k for k in options if value % k == 0 and value // k >= 2]
    if not fit:
        raise Reject
    return d.rng.choice(fit)
