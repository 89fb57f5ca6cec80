"""People who gain and lose things: one person, forward or backward in time, or two."""

from __future__ import annotations

import re

from pocket.gsm8k.draft import DAYS, Draft, Reject, possessive
from pocket.gsm8k.events import apply, clause, event


def possessions(d: Draft) -> None:
    """One person's things, event by event: the count now, on an earlier day, or the change."""
    who, other, item = d.names[0], d.names[1], d.items[0]
    value = start = d.num(6, 90)
    d.say(
        f"{who} has {value} {item}.",
        f"{who} starts with {value} {item}.",
        f"At first, {who} has {value} {item}.",
    )
    mode = d.pick("now", "now", "middle", "middle", "change")
    goal = d.target - (mode == "change")
    first = d.num(0, 1)
    day = first
    while len(d.steps) < goal:
        if day > 6:
            raise Reject
        text, ops = event(d, who, other, item, value, goal - len(d.steps))
        lead = f"on {DAYS[day]}, " if mode == "middle" else d.pick("then ", "later, ", "after that, ", "", "next, ")
        clause(d, who, text, lead)
        value = apply(d, value, ops)
        day += 1
    if mode == "middle" and day < 7:
        asked = DAYS[day - 1]
        for extra in range(d.num(1, min(2, 7 - day))):
            text, ops = event(d, who, other, item, value, 1)
            clause(d, who, text, f"on {DAYS[day + extra]}, ")
            apply(d, value, ops, record=False)
            d.unused += 1
        d.ask(
            f"How many {item} does {who} have at the end of {asked}?",
            f"How many {item} are left with {who} when {asked} is over?",
        )
    elif mode == "change" and value != start:
        more = "more" if value > start else "fewer"
        d.calc(max(value, start), "-", min(value, start))
        d.ask(
            f"How many {more} {item} does {who} have now than at the start?",
            f"In the end, how many {more} {item} does {who} have than at first?",
        )
    else:
        d.ask(f"How many {item} does {who} have now?", f"How many {item} does {who} have in the end?")


def reverse(d: Draft) -> None:
    """The count at the start, from the count at the end and the events between."""
    who, other, item = d.names[0], d.names[1], d.items[0]
    value = start = d.num(6, 80)
    d.say(f"{who} has some {item}.", f"{who} starts with some {item}.")
    done: list[tuple[list[tuple[str, int, int]], int]] = []
    used = 0
    while used < d.target:
        text, ops = event(d, who, other, item, value, d.target - used, invertible=True)
        clause(d, who, text, d.pick("then ", "later, ", "after that, ", "", "next, ") if done else "")
        done.append((ops, value))
        value = apply(d, value, ops, record=False)
        used += len(ops)
    d.say(f"Now {who} has {value} {item}.", f"In the end, {who} has {value} {item}.")
    inverse = {"+": "-", "-": "+", "*": "/", "/": "*"}
    for ops, _ in reversed(done):
        amount = ops[0][2]
        if len(ops) == 2:
            amount = d.calc(ops[0][1], "*", ops[0][2])
        value = d.calc(value, inverse[ops[-1][0]], amount)
    if value != start:
        raise Reject
    d.ask(f"How many {item} does {who} have at the start?", f"How many {item} does {who} have at first?")


def two_people(d: Draft) -> None:
    """Two people's things: the sum, the gap, or one of the two."""
    item = d.items[0]
    people = d.names[:2]
    mode = d.pick("sum", "sum", "gap", "gap", "one")
    goal = d.target - (mode != "one")
    if goal < 1:
        raise Reject
    split = d.num(0, goal) if mode != "one" else goal
    asked = d.num(0, 1)
    counts = {asked: split, 1 - asked: goal - split}
    totals = []
    for index, who in enumerate(people):
        value = d.num(6, 80)
        d.say(f"{who} has {value} {item}.", f"{who} owns {value} {item}.")
        room = counts[index]
        idle = mode == "one" and index != asked
        if idle:
            room = d.num(1, 2)
            d.unused += 1
        while room > 0:
            text, ops = event(d, who, d.names[2 + index], item, value, room)
            clause(d, who, text, d.pick("then ", "later, ", ""), pronoun=True)
            value = apply(d, value, ops, label=who, record=not idle)
            room -= len(ops)
        totals.append(value)
    one, two = totals
    if mode == "sum":
        d.calc(one, "+", two)
        d.ask(
            f"How many {item} do {people[0]} and {people[1]} have together?",
            f"How many {item} do {people[0]} and {people[1]} have in total now?",
        )
    elif mode == "gap":
        if one == two:
            raise Reject
        hi, lo = (0, 1) if one > two else (1, 0)
        d.calc(totals[hi], "-", totals[lo])
        d.ask(
            f"How many more {item} does {people[hi]} have than {people[lo]} now?",
            f"By how many {item} is {people[lo]} behind {people[hi]} in the end?",
        )
    else:
        d.ask(
            f"How many {item} does {people[asked]} have now?",
            f"How many {item} does {people[asked]} have in the end?",
        )


def transfers(d: Draft) -> None:
    """Two people who give things to each other: the gap, or one of the two."""
    item = d.items[0]
    pair = d.names[:2]
    counts = [d.num(12, 80), d.num(12, 80)]
    d.say(
        f"{pair[0]} has {counts[0]} {item} and {pair[1]} has {counts[1]}.",
        f"{pair[0]} has {counts[0]} {item}. {pair[1]} has {counts[1]} {item}.",
    )
    mode = d.pick("gap", "gap", "one") if d.target >= 3 else "gap" if d.chance(0.5) else "one"
    goal = d.target - (mode == "gap")
    log: list[list[tuple[str, int, int, str]]] = []
    size = 0
    while size < goal:
        giver = d.num(0, 1)
        taker = 1 - giver
        if d.chance(0.6) and size + 2 <= goal:
            if counts[giver] < 10:
                raise Reject
            if counts[giver] % 2 == 0 and d.chance(0.3):
                a = counts[giver] // 2
                text, ops = (
                    f"{pair[giver]} gives half of {possessive(pair[giver])} {item} to {pair[taker]}.",
                    ("/", 2),
                )
            else:
                a = d.num(2, counts[giver] - 5)
                text, ops = f"{pair[giver]} gives {a} {item} to {pair[taker]}.", ("-", a)
            d.say(text)
            log.append([(ops[0], giver, ops[1], ""), ("+", taker, a, "")])
            counts[giver] -= a
            counts[taker] += a
            size += 2
        else:
            text, ops = event(d, pair[giver], d.names[2], item, counts[giver], 1)
            clause(d, pair[giver], text, d.pick("", "then ", "later, "), pronoun=False)
            ((op, _, b),) = ops
            log.append([(op, giver, b, "")])
            counts[giver] = {
                "+": counts[giver] + b,
                "-": counts[giver] - b,
                "*": counts[giver] * b,
                "/": counts[giver] // b,
            }[op]
            size += 1
    start = re.findall(r"\d+", d.sentences[0])
    values = [int(start[0]), int(start[1])]
    for group in log:
        for op, i, b, _ in group:
            values[i] = d.calc(values[i], op, b, pair[i])
    if values != counts:
        raise Reject
    if mode == "gap":
        if values[0] == values[1]:
            raise Reject
        hi, lo = (0, 1) if values[0] > values[1] else (1, 0)
        d.calc(values[hi], "-", values[lo])
        d.ask(f"How many more {item} does {pair[hi]} have than {pair[lo]} now?")
    else:
        i = d.num(0, 1)
        # keep only this person's equations; a half given by the other one would need the other's as well
        other = pair[1 - i]
        if "half" in " ".join(d.sentences):
            raise Reject
        before = len(d.steps)
        d.steps = [step for step in d.steps if not step[0].startswith(other + ":")]
        d.unused += before != len(d.steps)
        d.ask(f"How many {item} does {pair[i]} have now?", f"How many {item} does {pair[i]} have in the end?")
