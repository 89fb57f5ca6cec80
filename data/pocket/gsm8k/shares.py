"""Equal shares, and parts of a group."""

from __future__ import annotations

from pocket.gsm8k.draft import PARTS, Draft, Reject, divisor


def sharing(d: Draft) -> None:
    """Bags of things, shared equally."""
    who, item = d.names[0], d.items[0]
    bags, each = d.num(3, 12), d.num(4, 20)
    box = d.pick("bags", "boxes", "jars")
    d.say(
        f"{who} has {bags} {box} with {each} {item} each.",
        f"{who} opens {bags} {box} of {each} {item}.",
        f"There are {each} {item} in each of {who}'s {bags} {box}.",
    )
    total = d.calc(bags, "*", each)
    k = d.num(3, 9)
    if d.left >= 2:
        up = d.chance(0.5)
        change = (-total if up else total) % k + k * d.num(1, 4)
        if up:
            d.say(f"{who} adds {change} loose {item}.", f"{who} finds {change} more {item}.")
        else:
            d.say(
                f"{change} {item} are lost.",
                f"{who} keeps {change} {item}.",
                f"{who} puts {change} {item} aside.",
            )
        total = d.calc(total, "+" if up else "-", change)
    else:
        k = divisor(d, total, (3, 4, 5, 6, 7, 8, 9))
    people = d.pick("friends", "children", "cousins")
    mode = d.pick("each", "some") if d.left >= 2 else "each"
    rest = (
        "the rest are"
        if d.sentences[-1].endswith(("lost.", "aside.")) or "keeps" in d.sentences[-1]
        else f"all the {item} are"
    )
    d.say(f"{rest} shared equally among {k} {people}.", f"{rest} given to {k} {people} in equal shares.")
    share = d.calc(total, "/", k)
    one = {"friends": "friend", "children": "child", "cousins": "cousin"}[people]
    if mode == "some":
        m = d.num(2, k - 1)
        share = d.calc(share, "*", m)
        d.ask(
            f"How many {item} do {m} of the {people} get together?",
            f"How many {item} go to {m} of these {people} in total?",
        )
        if d.left >= 1:
            raise Reject
    elif d.left >= 1:
        had = d.num(2, 30)
        d.say(f"Each {one} already has {had} {item}.", f"Before that, each {one} has {had} {item}.")
        share = d.calc(share, "+", had)
        d.ask(
            f"How many {item} does each {one} have now?",
            f"How many {item} does each of the {people} have in the end?",
        )
    else:
        d.ask(f"How many {item} does each {one} get?", f"What is the number of {item} for each {one}?")


GROUPS = (
    ("students", "at a school", ("walk", "take the bus", "ride a bike", "come by car")),
    ("guests", "at a hotel", ("drink tea", "drink coffee", "drink milk", "drink juice")),
    ("birds", "in a park", ("are black", "are white", "are brown", "are gray")),
    ("flowers", "in a garden", ("are red", "are white", "are yellow", "are blue")),
    ("cars", "on a street", ("are red", "are white", "are black", "are blue")),
    ("people", "in a club", ("play chess", "play music", "like to paint", "like to dance")),
)


def parts(d: Draft) -> None:
    """Parts of a group: fractions, percentages and counts of the rest."""
    unit, place, kinds = d.rng.choice(GROUPS)
    kinds = d.rng.sample(kinds, 4)
    total = d.num(2, 20) * d.pick(6, 10, 12, 20)
    count = 1 if d.target <= 3 else 2 if d.target <= 5 else 3
    d.say(f"There are {total} {unit} {place}.", f"{total} {unit} are {place}.")
    rest, sizes = total, []
    for i in range(count):
        of = "of them" if i == 0 else d.pick("of the rest", "of the others")
        style = d.pick("percent", "fraction", "count", "several")
        if style == "percent" and d.target - len(d.steps) >= 3:
            fit = [p for p in (10, 20, 25, 30, 40, 60, 75) if rest * p % 100 == 0]
            if not fit or rest * max(fit) > 9999:
                raise Reject
            p = d.rng.choice(fit)
            d.say(f"{p} percent {of} {kinds[i]}.")
            part = d.calc(d.calc(rest, "*", p), "/", 100)
        elif style == "several" and d.target - len(d.steps) >= 3:
            k = divisor(d, rest, (3, 4, 5))
            m = d.num(2, k - 1)
            if k == 4:
                m = 3
            d.say(f"{('two', 'three', 'four')[m - 2]} {('thirds', 'quarters', 'fifths')[k - 3]} {of} {kinds[i]}.")
            part = d.calc(d.calc(rest, "/", k), "*", m)
        elif style == "count":
            part = d.num(3, max(4, rest // 2))
            d.say(f"{part} {of} {kinds[i]}.")
        else:
            k = divisor(d, rest)
            d.say(f"{PARTS[k]} {of} {kinds[i]}.")
            part = d.calc(rest, "/", k)
        sizes.append(part)
        rest = d.calc(rest, "-", part)
    d.say(f"All the others {kinds[count]}.", f"The rest {kinds[count]}.")
    if d.left >= 1 and d.chance(0.6) and rest != sizes[0]:
        a, b = (kinds[count], kinds[0]) if rest > sizes[0] else (kinds[0], kinds[count])
        d.calc(max(rest, sizes[0]), "-", min(rest, sizes[0]))
        d.ask(f"How many more {unit} {a} than {b}?")
    elif d.left >= 1:
        new = d.num(3, 40)
        d.say(f"Then {new} more {unit} that {kinds[count]} join them.")
        d.calc(rest, "+", new)
        d.ask(f"How many {unit} {kinds[count]} now?")
    else:
        d.ask(f"How many {unit} {kinds[count]}?", f"How many of the {unit} {kinds[count]}?")
