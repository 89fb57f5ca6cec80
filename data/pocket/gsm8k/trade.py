"""Buying, earning, and the stock of a shop."""

from __future__ import annotations

from pocket.gsm8k.draft import PRONOUN, Draft, Reject, divisor, possessive


def shopping(d: Draft) -> None:
    """Two or three kinds of goods: the bill, the change, what is missing, or each one's share."""
    who = d.names[0]
    kinds = 2 if d.target <= 4 else 3
    goods = [(d.num(2, 12), d.items[i], d.num(2, 15)) for i in range(kinds)]
    listed = [d.pick(f"{q} {it} at {p} dollars each", f"{q} {it} for {p} dollars each") for q, it, p in goods]
    d.say(
        f"{who} buys {', '.join(listed[:-1])} and {listed[-1]}.",
        f"At the shop, {who} gets {', '.join(listed[:-1])} and {listed[-1]}.",
    )
    mode = d.pick("total", "change", "change", "gap", "short", "split")
    his = possessive(who)
    if mode == "gap":
        i, j = d.rng.sample(range(kinds), 2)
        costs = {k: d.calc(goods[k][0], "*", goods[k][2], goods[k][1]) for k in sorted((i, j))}
        if costs[i] == costs[j]:
            raise Reject
        hi, lo = (i, j) if costs[i] > costs[j] else (j, i)
        d.calc(costs[hi], "-", costs[lo])
        d.unused += kinds - 2
        if d.chance(0.5):
            d.say(f"{PRONOUN[who]} pays with {d.num(3, 9) * 100} dollars.")
            d.unused += 1
        d.ask(
            f"How many more dollars do all the {goods[hi][1]} cost than all the {goods[lo][1]}?",
            f"How much more does {who} spend on {goods[hi][1]} than on {goods[lo][1]}?",
        )
        return
    costs = [d.calc(q, "*", p) for q, _, p in goods]
    total = costs[0]
    for cost in costs[1:]:
        total = d.calc(total, "+", cost)
    if d.left > (mode != "total") and d.chance(0.7):
        if total % 2 == 0 and d.chance(0.4):
            d.say("Everything is sold at half price today.", "Today the shop sells everything at half price.")
            total = d.calc(total, "/", 2)
        else:
            off = d.num(2, 25)
            d.say(
                f"A coupon takes {off} dollars off the bill.",
                f"{PRONOUN[who]} has a coupon for {off} dollars off the bill.",
            )
            total = d.calc(total, "-", off)
    if d.left > (mode != "total") and d.chance(0.7):
        fee = d.num(3, 20)
        d.say(f"Delivery costs {fee} dollars more.", f"{PRONOUN[who]} also pays {fee} dollars for delivery.")
        total = d.calc(total, "+", fee)
    if mode == "change":
        bill = (total // 10 + d.num(1, 6)) * 10
        d.say(f"{who} pays with {bill} dollars.", f"{who} hands over {bill} dollars.")
        d.calc(bill, "-", total)
        d.ask(f"How many dollars of change does {who} get?", f"How much change does {who} get back?")
    elif mode == "short":
        has = max(2, d.num(1, total - 1))
        d.say(f"{who} has only {has} dollars in {his} wallet.", f"{who} has saved {has} dollars.")
        d.calc(total, "-", has)
        d.ask(f"How many more dollars does {who} need?", f"How much money is {who} missing?")
    elif mode == "split":
        k = divisor(d, total, (2, 3, 4, 5, 6, 7, 8))
        d.say(f"{k} friends share the cost equally.", f"The cost is split equally among {k} friends.")
        d.calc(total, "/", k)
        d.ask("How many dollars does each friend pay?", "How much does each of the friends pay?")
    else:
        d.ask(f"How many dollars does {who} pay in total?", f"How much does {who} spend?")


def income(d: Draft) -> None:
    """Pay by the hour, week by week."""
    who = d.names[0]
    pay, hours, days = d.num(6, 25), d.num(2, 8), d.num(2, 6)
    d.say(f"{who} earns {pay} dollars an hour.", f"{who} is paid {pay} dollars per hour.")
    d.say(
        f"{PRONOUN[who]} works {hours} hours a day, {days} days a week.",
        f"{PRONOUN[who]} works {hours} hours on each of {days} days a week.",
    )
    total = d.calc(hours, "*", days)
    if d.left >= 2 and d.chance(0.5):
        extra = d.num(2, 6)
        d.say(
            f"On Sunday, {PRONOUN[who]} works {extra} more hours.",
            f"Every week, {PRONOUN[who]} also does {extra} extra hours.",
        )
        total = d.calc(total, "+", extra)
    if d.left >= 2 and d.chance(0.25):
        d.unused += 1
        d.say(f"{who} spends {d.num(20, 60)} dollars a week on food.")
        weeks = d.num(2, 6)
        d.calc(total, "*", weeks)
        d.ask(f"How many hours does {who} work in {weeks} weeks?")
        return
    total = d.calc(total, "*", pay)
    moves = ["bonus", "spend", "weeks"]
    d.rng.shuffle(moves)
    spends = 0
    while d.left >= (2 if spends else 1) and moves:
        move = moves.pop()
        if move == "bonus":
            b = d.num(5, 60)
            d.say(
                f"Each week, {PRONOUN[who]} also gets a bonus of {b} dollars.",
                f"{who} gets {b} dollars a week in tips.",
            )
            total = d.calc(total, "+", b)
        elif move == "spend":
            c = d.num(10, 90)
            d.say(
                f"{who} spends {c} dollars a week on food.",
                f"Every week, {PRONOUN[who]} pays {c} dollars for a room.",
            )
            total = d.calc(total, "-", c)
            spends = 1
        else:
            break
    weeks = d.num(2, 9)
    if d.left >= 2:
        total = d.calc(total, "*", weeks)
        cost = d.num(max(1, total // 4), max(2, total - 5))
        thing = d.pick("bike", "phone", "desk", "coat")
        d.say(f"After {weeks} weeks, {PRONOUN[who]} buys a {thing} for {cost} dollars.")
        d.calc(total, "-", cost)
        d.ask(f"How many dollars does {who} have left after buying the {thing}?")
    elif d.left == 1:
        d.calc(total, "*", weeks)
        d.ask(
            f"How many dollars does {who} save in {weeks} weeks?"
            if spends
            else f"How many dollars does {who} earn in {weeks} weeks?"
        )
    else:
        d.ask(
            f"How many dollars does {who} have left each week?"
            if spends
            else f"How many dollars does {who} earn each week?"
        )


def inventory(d: Draft) -> None:
    """The stock of a shop, event by event."""
    item, other = d.items[:2]
    place = d.pick("shop", "market", "store")
    boxes, each = d.num(3, 20), d.num(4, 24)
    d.say(
        f"A {place} has {boxes} boxes with {each} {item} in each.",
        f"A {place} gets {boxes} boxes of {each} {item}.",
    )
    mode = d.pick("plain", "plain", "rows", "other")
    if mode == "other":
        d.say(f"It also has {d.num(2, 15)} boxes with {d.num(3, 20)} {other} in each.")
        d.unused += 1
    total = d.calc(boxes, "*", each)
    if mode == "rows" and d.left >= 2:
        rows, per = d.num(2, 9), d.num(5, 20)
        d.say(
            f"There are also {rows} shelves with {per} {item} each.",
            f"It also has {rows} bags of {per} {item}.",
        )
        total = d.calc(total, "+", d.calc(rows, "*", per))
    asked = ""
    while d.left >= 1:
        kind = d.pick("sell", "sell", "bad", "more", "days", "half")
        if kind == "days" and d.left >= 2 and total > 40:
            per, days = d.num(3, 20), d.num(2, 6)
            if per * days >= total - 5:
                continue
            d.say(
                f"It sells {per} {item} a day for {days} days.",
                f"On each of the next {days} days, {per} {item} are sold.",
            )
            total = d.calc(total, "-", d.calc(per, "*", days))
        elif kind == "half" and total % 2 == 0 and total > 12:
            d.say(
                f"Then half of the {item} in the {place} are sold.",
                f"Then the {place} sells half of its {item}.",
            )
            total = d.calc(total, "/", 2)
        elif kind in ("sell", "bad") and total > 12:
            a = d.num(3, min(80, total - 6))
            d.say(f"It sells {a} {item}.", f"{a} {item} are sold.") if kind == "sell" else d.say(
                f"{a} {item} are bad and thrown away.", f"{a} {item} are broken and removed."
            )
            total = d.calc(total, "-", a)
        elif kind == "more":
            a = d.num(5, 80)
            d.say(f"Then {a} more {item} arrive.", f"A truck brings {a} more {item}.")
            total = d.calc(total, "+", a)
        if d.left == 1 and d.chance(0.3):
            fit = [k for k in (4, 5, 6, 8, 10, 12) if total % k == 0 and total > k]
            if fit:
                k = d.rng.choice(fit)
                d.say(
                    f"The {item} left are put into bags of {k}.",
                    f"The remaining {item} are packed in bags of {k}.",
                )
                d.calc(total, "/", k)
                asked = "How many bags are filled?"
    d.ask(asked) if asked else d.ask(
        f"How many {item} does the {place} have now?", f"How many {item} are there in the {place} in the end?"
    )
