"""A function problem under construction: its random choices, conditions and maps of an integer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache

LIST_ARGS = "xs nums numbers values items data lst arr a v".split()
STR_ARGS = "s text string t line word q".split()
STRS_ARGS = "words strs names ws items tokens lines".split()
INT_ARGS = "n m k num value p z".split()
LETTERS = "abcdeghilmnoprstu"


@dataclass
class Spec:
    """One problem before its examples and tests; the argument kinds are those of `draw_value`."""

    sentence: str
    body: list[str]
    args: list[tuple[str, str]]
    name: str
    family: str = ""
    ints: list[int] = field(default_factory=list)  # values worth testing near
    chars: str = ""  # characters worth testing


ALL_INTS = frozenset(range(-15, 46))


@lru_cache(maxsize=20_000)
def satisfying(code: str) -> frozenset[int]:
    """The integers from -15 to 45 for which a condition in {x} holds."""
    test = eval(f"lambda x: {code.replace('{x}', 'x')}")  # our own source
    return frozenset(x for x in range(-15, 46) if test(x))


class Draw:
    """Random choices of one problem, with the constants and characters it used."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ints: list[int] = []
        self.chars = ""

    def pick(self, *options):
        return options[int(self.rng.random() * len(options))]

    def num(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def letter(self) -> str:
        c = self.rng.choice(LETTERS)
        self.chars += c
        return c

    def pred(self) -> tuple[str, str, str, str]:
        """A condition on an integer: adjective or "", clause, expression in {x}, short name."""
        kind = self.num(0, 14)
        k = self.num(-3, 20)
        m = self.num(3, 9)
        if kind == 0:
            return "even", "are even", "{x} % 2 == 0", "even"
        if kind == 1:
            return "odd", "are odd", "{x} % 2 == 1", "odd"
        if kind == 2:
            return "positive", "are positive", "{x} > 0", "positive"
        if kind == 3:
            return "negative", "are negative", "{x} < 0", "negative"
        if kind in (4, 5):
            self.ints.append(k)
            return (
                "",
                self.pick(f"are greater than {k}", f"are above {k}", f"exceed {k}"),
                f"{{x}} > {k}",
                "large",
            )
        if kind in (6, 7):
            self.ints.append(k)
            return (
                "",
                self.pick(f"are less than {k}", f"are below {k}", f"are smaller than {k}"),
                f"{{x}} < {k}",
                "small",
            )
        if kind == 8:
            self.ints.append(k)
            return "", self.pick(f"are at least {k}", f"are {k} or more"), f"{{x}} >= {k}", "large"
        if kind == 9:
            self.ints.append(k)
            return "", self.pick(f"are at most {k}", f"are {k} or less"), f"{{x}} <= {k}", "small"
        if kind == 10:
            self.ints += [2 * m, 3 * m]
            return (
                "",
                self.pick(f"are divisible by {m}", f"are multiples of {m}"),
                f"{{x}} % {m} == 0",
                "multiples",
            )
        if kind == 11:
            self.ints += [2 * m, 3 * m]
            return (
                "",
                self.pick(f"are not divisible by {m}", f"are not multiples of {m}"),
                f"{{x}} % {m} != 0",
                "other",
            )
        if kind == 12:
            r = self.num(1, m - 1)
            self.ints += [m + r, 2 * m + r]
            return (
                "",
                self.pick(f"leave remainder {r} when divided by {m}", f"are equal to {r} modulo {m}"),
                f"{{x}} % {m} == {r}",
                "mod",
            )
        if kind == 13:
            self.ints.append(k)
            return "", self.pick(f"are not equal to {k}", f"differ from {k}"), f"{{x}} != {k}", "not"
        hi = k + self.num(3, 15)
        self.ints += [k, hi]
        return (
            "",
            self.pick(f"are between {k} and {hi} inclusive", f"are from {k} to {hi}"),
            f"{k} <= {{x}} <= {hi}",
            "range",
        )

    def preds(self, p_two: float = 0.35) -> tuple[str, str, str, str]:
        """One condition, or two joined by and / or."""
        adj, clause, code, name = self.pred()
        if not self.chance(p_two):
            return adj, clause, code, name
        first = satisfying(code)
        for _ in range(50):
            _, clause2, code2, name2 = self.pred()
            word = self.pick("and", "and", "or")
            second = satisfying(code2)
            both = first & second if word == "and" else first | second
            if name2 != name and len(both) > 2 and both not in (first, second, ALL_INTS):
                break
        else:
            return adj, clause, code, name
        return "", f"{clause} {word} {clause2}", f"{code} {word} {code2}", f"{name}_{name2}"

    def map(self) -> tuple[str, str, str, str]:
        """A map of an integer: wording before ("the squares of"), after (", each ..."), expression, name."""
        k = self.num(2, 9)
        kind = self.num(0, 9)
        if kind == 0:
            return "the squares of ", "", "{x} * {x}", "squares"
        if kind == 1:
            return "the absolute values of ", "", "abs({x})", "abs"
        if kind == 2:
            return "the negatives of ", "", "-{x}", "negated"
        if kind == 3:
            return "the cubes of ", "", "{x} ** 3", "cubes"
        if kind == 4:
            return "", self.pick(f", each multiplied by {k}", f", each times {k}"), f"{{x}} * {k}", "scaled"
        if kind == 5:
            return (
                "",
                self.pick(f", each increased by {k}", f", with {k} added to each"),
                f"{{x}} + {k}",
                "plus",
            )
        if kind == 6:
            return (
                "",
                self.pick(f", each decreased by {k}", f", with {k} subtracted from each"),
                f"{{x}} - {k}",
                "minus",
            )
        if kind == 7:
            return (
                self.pick(f"the remainders modulo {k} of ", f"the remainders after division by {k} of "),
                "",
                f"{{x}} % {k}",
                "mod",
            )
        if kind == 8:
            c = self.num(4, 15)
            self.ints.append(c)
            return (
                "",
                self.pick(f", each capped at {c}", f", each limited to at most {c}"),
                f"min({{x}}, {c})",
                "capped",
            )
        c = self.num(1, 9)
        return "", f", each multiplied by {k} and then increased by {c}", f"{{x}} * {k} + {c}", "linear"


def fill(template: str, x: str) -> str:
    """An expression in {x}, written for a variable."""
    return template.replace("{x}", x)


def singular(clause: str) -> str:
    """A clause in the plural ("are even"), in the singular ("is even")."""
    swap = {"are": "is", "exceed": "exceeds", "leave": "leaves", "differ": "differs"}
    return (
        " ".join(swap.get(w, w) for w in clause.split())
        .replace("is multiples", "is a multiple")
        .replace("is not multiples", "is not a multiple")
    )
