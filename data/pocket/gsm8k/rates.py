"""Trips, machines and gardens: speed times time, output times time, length times width."""

from __future__ import annotations

from pocket.gsm8k.draft import PRONOUN, TIMES, Draft, Reject, divisor


def travel(d: Draft) -> None:
    """Legs of a trip, each at a speed for some hours."""
    who = d.names[0]
    verb, speeds, unit = d.pick(("drives", (30, 90), "miles"), ("rides", (8, 25), "miles"), ("walks", (3, 9), "km"))
    legs = d.num(1, 3) if d.target > 3 else d.num(1, 2)
    total, parts = 0, []
    for i in range(legs):
        speed, hours = d.num(*speeds), d.num(2, 8)
        text = d.pick(f"for {hours} hours at {speed} {unit} an hour", f"at {speed} {unit} per hour for {hours} hours")
        d.say(f"{who} {verb} {text}." if i == 0 else f"then {PRONOUN[who]} {verb} {text}.")
        parts.append(d.calc(speed, "*", hours))
    total = parts[0]
    if legs > 1 and d.target <= legs + 1 and d.chance(0.3):
        hi, lo = (0, 1) if parts[0] > parts[1] else (1, 0)
        if legs == 2:
            d.calc(parts[hi], "-", parts[lo])
            order = ("first", "second")
            d.ask(f"How many {unit} longer is the {order[hi]} part of the trip than the {order[lo]} part?")
            return
    for part in parts[1:]:
        total = d.calc(total, "+", part)
    if d.left >= 1 and d.chance(0.4):
        extra = d.num(2, 30)
        d.say(f"after a break, {PRONOUN[who]} {verb} {extra} {unit} more.")
        total = d.calc(total, "+", extra)
    if d.left >= 2 or (d.left >= 1 and d.chance(0.5)):
        rest_speed = d.num(*speeds)
        hours = d.num(2, 9)
        whole = total + rest_speed * hours
        d.say(f"The whole trip is {whole} {unit} long.", f"{who} wants to go {whole} {unit} in all.")
        rest = d.calc(whole, "-", total)
        if d.left >= 1:
            d.say(
                f"{who} does the rest at {rest_speed} {unit} per hour.",
                f"{who} goes {rest_speed} {unit} an hour for the rest.",
            )
            d.calc(rest, "/", rest_speed)
            d.ask("How many hours does the rest take?", f"For how many hours does {who} still travel?")
        else:
            d.ask(f"How many {unit} are left?", f"How many {unit} does {who} still have to go?")
    else:
        d.ask(f"How many {unit} does {who} go in total?", f"How far, in {unit}, does {who} go?")


def machines(d: Draft) -> None:
    """An old and a new machine: what they make, how it is packed and sold."""
    item = d.items[0]
    a, b, hours = d.num(6, 60), d.num(6, 60), d.num(2, 9)
    maker = d.pick("machine", "robot", "printer")
    d.say(
        f"A new {maker} makes {a} {item} an hour and an old {maker} makes {b}.",
        f"In one hour, a new {maker} makes {a} {item} and an old {maker} makes {b}.",
    )
    mode = d.pick("both", "both", "apart", "gap")
    if mode == "both":
        d.say(f"Both work for {hours} hours.", f"They both work {hours} hours.")
        total = d.calc(d.calc(a, "+", b), "*", hours)
    elif mode == "apart":
        other = d.num(2, 9)
        d.say(f"The new one works for {hours} hours and the old one for {other} hours.")
        one, two = d.calc(a, "*", hours, "new"), d.calc(b, "*", other, "old")
        if d.target == 3 and one != two and d.chance(0.5):
            hi, lo = ("new", "old") if one > two else ("old", "new")
            d.calc(max(one, two), "-", min(one, two))
            d.ask(f"How many more {item} does the {hi} {maker} make than the {lo} one?")
            return
        total = d.calc(one, "+", two)
    else:
        d.say(f"Both work for {hours} hours.", f"They both work {hours} hours.")
        if a == b:
            raise Reject
        d.calc(d.calc(max(a, b), "-", min(a, b)), "*", hours)
        hi, lo = ("new", "old") if a > b else ("old", "new")
        d.ask(f"How many more {item} does the {hi} {maker} make than the {lo} one in that time?")
        return
    sorted_out = d.left >= 2 or (d.left >= 1 and d.chance(0.6))
    if sorted_out:
        bad = d.num(2, 30)
        d.say(
            f"{bad} of the {item} are broken and thrown away.",
            f"Of all the {item}, {bad} are bad and cannot be sold.",
        )
        total = d.calc(total, "-", bad)
    if d.left >= 1:
        k = divisor(d, total, (3, 4, 5, 6, 7, 8, 9, 12))
        d.say(
            f"The good {item} are packed in boxes of {k}." if sorted_out else f"All {item} are packed in boxes of {k}."
        )
        boxes = d.calc(total, "/", k)
        if d.left >= 1:
            price = d.num(3, 25)
            d.say(f"Each box is sold for {price} dollars.", f"A box costs {price} dollars.")
            d.calc(boxes, "*", price)
            d.ask("How many dollars do all the boxes bring in?", "For how many dollars are all boxes sold?")
        else:
            d.ask("How many boxes are filled?", "How many boxes are needed?")
    else:
        d.ask(f"How many good {item} are there?" if sorted_out else f"How many {item} do they make in all?")


def garden(d: Draft) -> None:
    """A rectangle: its fence or its area, and what they cost."""
    who = d.names[0]
    thing = d.pick("garden", "field", "yard", "floor")
    width = d.num(4, 24)
    relation = d.pick("given", "more", "times") if d.target >= 3 else "given"
    if relation == "given":
        length = width + d.num(1, 25)
        d.say(
            f"{who}'s {thing} is {length} meters long and {width} meters wide.",
            f"{who} has a {thing} of {length} by {width} meters.",
        )
    elif relation == "more":
        a = d.num(2, 20)
        d.say(f"{who}'s {thing} is {width} meters wide and {a} meters longer than it is wide.")
        length = d.calc(width, "+", a, "length")
    else:
        k = d.pick(2, 3, 4)
        d.say(f"{who}'s {thing} is {width} meters wide and {TIMES[k][0]} as long as it is wide.")
        length = d.calc(width, "*", k, "length")
    if thing != "floor" and d.chance(0.6):
        around = d.calc(d.calc(length, "+", width), "*", 2)
        if d.left >= 1 and (d.left >= 2 or d.chance(0.5)):
            gate = d.num(1, 6)
            unit = "meter" if gate == 1 else "meters"
            d.say(f"A fence goes all around it, except for a gate of {gate} {unit}.")
            around = d.calc(around, "-", gate)
        else:
            d.say("A fence goes all around it.", f"{who} puts a fence all around it.")
        if d.left >= 1:
            price = d.num(2, 12)
            d.say(f"One meter of fence costs {price} dollars.", f"The fence costs {price} dollars a meter.")
            cost = d.calc(around, "*", price)
            if d.left >= 1:
                has = d.num(10, max(11, cost - 10))
                d.say(f"{who} has saved {has} dollars.", f"{who} has {has} dollars.")
                d.calc(cost, "-", has)
                d.ask(f"How many more dollars does {who} need for the fence?")
            else:
                d.ask("How many dollars does the fence cost?", f"How much does {who} pay for the fence?")
        else:
            d.ask("How many meters long is the fence?", "How many meters of fence are needed?")
        return
    area = d.calc(length, "*", width)
    if d.left >= 2 or (d.left >= 1 and d.chance(0.5)):
        used = d.num(4, max(5, area - 5))
        part = "rug" if thing == "floor" else d.pick("pond", "shed", "path")
        d.say(f"A {part} covers {used} square meters of it.")
        area = d.calc(area, "-", used)
        if d.left == 0:
            d.ask(f"How many square meters of the {thing} are not covered?")
            return
        free = True
    else:
        free = False
    if d.left >= 1:
        cost = d.num(2, 9)
        where = f"the free part of the {thing}" if free else f"the whole {thing}"
        d.say(f"It takes {cost} minutes to clean one square meter.")
        total = d.calc(area, "*", cost)
        if d.left >= 1:
            k = divisor(d, total)
            d.say(f"{k} people share the work equally.")
            d.calc(total, "/", k)
            d.ask(f"To clean {where}, how many minutes does each person work?")
        else:
            d.ask(f"How many minutes does it take to clean {where}?")
    else:
        d.ask(f"What is the area of the {thing} in square meters?", f"How many square meters is the {thing}?")
