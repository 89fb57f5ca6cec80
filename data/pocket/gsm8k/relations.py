"""Amounts and ages that hang on those of other people."""

from __future__ import annotations

from collections.abc import Callable

from pocket.gsm8k.draft import TIMES, Draft, Reject


def related(
    d: Draft, unit: str, low: int, high: int, ages: bool, count: int
) -> tuple[list[int], list[Callable[[], int]]]:
    """`count` people whose amounts hang on those of others.

    Returns the true values and, for each, a function that emits the equations it needs (once) and returns it.
    """
    people, lines = d.names[:count], []
    values, rules = [d.num(low, high)], [None]
    lines.append(d.pick(f"{people[0]} is {values[0]} years old." if ages else f"{people[0]} has {values[0]} {unit}."))
    for i in range(1, count):
        j = d.num(max(0, i - 2), i - 1) if d.chance(0.4) else i - 1
        base, me, ref = values[j], people[i], people[j]
        kind = d.pick("more", "more", "fewer", "times", "times", "half", "mix", "mix", "both")
        a = d.num(2, 12 if ages else 40)
        if kind == "fewer" and base - a >= 3:
            text = (
                f"{me} is {a} years younger than {ref}"
                if ages
                else d.pick(f"{me} has {a} fewer {unit} than {ref}", f"{me} has {a} {unit} less than {ref}")
            )
            rule = [("-", j, a)]
        elif kind == "times" and base <= (16 if ages else 60):
            k = d.pick(2, 2, 3, 4) if ages else d.pick(2, 3, 4, 5, 6)
            text = (
                f"{me} is {TIMES[k][0]} as old as {ref}"
                if ages
                else d.pick(
                    f"{me} has {TIMES[k][0]} as many {unit} as {ref}",
                    f"{me} has {k} times as many {unit} as {ref}",
                )
            )
            rule = [("*", j, k)]
        elif kind == "half" and base % 2 == 0 and base >= 8:
            text = f"{me} is half as old as {ref}" if ages else f"{me} has half as many {unit} as {ref}"
            rule = [("/", j, 2)]
        elif kind == "mix" and base <= (12 if ages else 45) and base > 3:
            k, a = d.pick(2, 2, 3), d.num(2, 9)
            sign = "+" if ages or d.chance(0.6) or base * k - a < 3 else "-"
            word = ("more" if sign == "+" else "fewer") if not ages else "years more"
            text = (
                f"{me}'s age is {a} {word} than {TIMES[k][0]} {ref}'s age"
                if ages
                else (f"{me} has {a} {word} than {TIMES[k][0]} as many {unit} as {ref}")
            )
            rule = [("*", j, k), (sign, -1, a)]
        elif kind == "both" and i >= 2 and not ages:
            text = f"{me} has as many {unit} as {people[0]} and {people[1]} together"
            rule = [("+", 0, None)]
        else:
            text = (
                f"{me} is {a} years older than {ref}"
                if ages
                else d.pick(f"{me} has {a} more {unit} than {ref}", f"{me} has {a} {unit} more than {ref}")
            )
            rule = [("+", j, a)]
        value = 0
        for op, j_, b in rule:
            left = value if j_ == -1 else values[j_]
            b = values[1] if b is None else b
            value = left + b if op == "+" else left - b if op == "-" else left * b if op == "*" else left // b
        if value > (95 if ages else 800):
            raise Reject
        values.append(value)
        rules.append(rule)
        lines.append(text + ".")
    if d.chance(0.3):
        lines.append(lines.pop(0))  # the known amount comes last
    d.sentences.extend(lines)
    seen: dict[int, int] = {0: values[0]}

    def need(i: int) -> int:
        if i not in seen:
            value = 0
            for op, j, b in rules[i]:
                left = value if j == -1 else need(j)
                value = d.calc(left, op, need(1) if b is None else b, people[i])
            seen[i] = value
        return seen[i]

    def user(i: int) -> Callable[[], int]:
        return lambda: need(i)

    d.needed = seen
    return values, [user(i) for i in range(count)]


def comparison(d: Draft) -> None:
    """Things of three to five people, each given by another's: a sum, a gap, or one amount."""
    item = d.items[0]
    count = min(5, max(3, d.num(d.target // 2 + 1, d.target)))
    values, need = related(d, item, 4, 40, False, count)
    people = d.names[:count]
    mode = d.pick("all", "all", "pair", "gap", "gap", "one")
    if mode == "all":
        total = need[0]()
        parts = [fn() for fn in need]
        total = parts[0]
        for part in parts[1:]:
            total = d.calc(total, "+", part)
        d.ask(
            f"How many {item} do they have altogether?",
            f"How many {item} do the {count} of them have in total?",
        )
    else:
        i = count - 1 if d.chance(0.6) else d.num(1, count - 1)
        j = d.rng.choice([k for k in range(count) if k != i])
        a, b = need[i](), need[j]() if mode != "one" else 0
        if mode == "pair":
            d.calc(a, "+", b)
            d.ask(
                f"How many {item} do {people[i]} and {people[j]} have together?",
                f"What is the total number of {item} of {people[i]} and {people[j]}?",
            )
        elif mode == "gap":
            hi, lo = (i, j) if a > b else (j, i)
            d.calc(values[hi], "-", values[lo])
            d.ask(
                f"How many more {item} does {people[hi]} have than {people[lo]}?",
                f"How many {item} is {people[lo]} short of what {people[hi]} has?",
            )
        else:
            d.ask(f"How many {item} does {people[i]} have?")
    d.unused += sum(i not in d.needed for i in range(count))


def ages(d: Draft) -> None:
    """Ages given by other ages, now or in other years."""
    count = min(4, max(2, d.num(d.target // 2, d.target)))
    values, need = related(d, "", 4, 30, True, count)
    people = d.names[:count]
    mode = d.pick("future", "past", "sum", "gap", "future sum", "future sum")
    years = d.num(2, 15)
    i = count - 1 if d.chance(0.6) else d.num(1, count - 1)
    j = d.rng.choice([k for k in range(count) if k != i])
    if mode == "future":
        d.calc(need[i](), "+", years)
        d.ask(
            f"How old will {people[i]} be in {years} years?",
            f"What age will {people[i]} reach {years} years from now?",
        )
    elif mode == "past":
        d.calc(need[i](), "-", years)
        d.ask(f"How old was {people[i]} {years} years ago?")
    elif mode == "gap":
        a, b = need[i](), need[j]()
        hi, lo = (i, j) if a > b else (j, i)
        d.calc(values[hi], "-", values[lo])
        d.ask(
            f"How many years older is {people[hi]} than {people[lo]}?",
            f"How many years younger is {people[lo]} than {people[hi]}?",
        )
    else:
        a, b = need[i](), need[j]()
        if mode == "sum":
            d.calc(a, "+", b)
            d.ask(f"What is the sum of the ages of {people[i]} and {people[j]}?")
        else:
            a, b = d.calc(a, "+", years, people[i]), d.calc(b, "+", years, people[j])
            d.calc(a, "+", b)
            d.ask(
                f"What will be the sum of the ages of {people[i]} and {people[j]} in {years} years?",
                f"In {years} years, how old will {people[i]} and {people[j]} be together?",
            )
    d.unused += sum(k not in d.needed for k in range(count))
