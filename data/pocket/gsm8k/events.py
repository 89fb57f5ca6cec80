"""Changes of how many things a person has: buying, losing, sharing, doubling."""

from __future__ import annotations

from pocket.gsm8k.draft import NAMES, PARTS, PRONOUN, Draft, Reject, possessive

# The clause, and operations: (op, a or -1 for the running value, b or 0 for the last side result).
Event = tuple[str, list[tuple[str, int, int]]]


def event(d: Draft, who: str, other: str, item: str, value: int, room: int, invertible: bool = False) -> Event:
    """A change of how many `item` `who` has: the clause, with {w} for the subject, and its equations."""
    his = possessive(who)
    kinds = ["add", "sub", "add", "sub", "mul", "half"] + ["packs", "each"] * 2 * (room >= 2)
    kinds += ["part", "part"] * (room >= 2 and not invertible)
    for _ in range(20):
        kind = d.rng.choice(kinds)
        if kind == "add":
            a = d.num(3, 60)
            text = d.pick(
                f"{{w}} buys {a} more {item}",
                f"{{w}} finds {a} more {item}",
                f"{{w}} wins {a} {item}",
                f"{{w}} gets {a} {item} from {other}",
                f"{other} gives {who} {a} {item}",
            )
            return text, [("+", -1, a)]
        if kind == "sub" and value > 8:
            a = d.num(2, min(value - 3, 70))
            text = d.pick(
                f"{{w}} loses {a} {item}",
                f"{{w}} gives {a} {item} to {other}",
                f"{{w}} sells {a} {item}",
                f"{{w}} gives away {a} {item}",
                f"{other} takes {a} of {who}'s {item}",
            )
            return text, [("-", -1, a)]
        if kind == "mul" and value <= 120:
            k = d.pick(2, 2, 3)
            verb = "doubles" if k == 2 else "triples"
            text = d.pick(f"{{w}} {verb} the number of {his} {item}", f"the number of {who}'s {item} {verb}")
            return text, [("*", -1, k)]
        if kind == "half" and value % 2 == 0 and value >= 8:
            text = d.pick(
                f"{{w}} gives half of {his} {item} to {other}",
                f"{{w}} sells half of {his} {item}",
                f"{{w}} loses half of {his} {item}",
            )
            return text, [("/", -1, 2)]
        if kind == "packs":
            k, m = d.num(2, 9), d.num(3, 12)
            box = d.pick("packs", "boxes", "bags")
            text = d.pick(f"{{w}} buys {k} {box} of {m} {item}", f"{{w}} gets {k} {box} with {m} {item} each")
            return text, [("*", k, m), ("+", -1, 0)]
        if kind == "each" and value > 15:
            k = d.num(2, 6)
            m = d.num(2, 9)
            if k * m < value - 2:
                text = d.pick(
                    f"{{w}} gives {m} {item} to each of {k} friends", f"{{w}} gives {k} friends {m} {item} each"
                )
                return text, [("*", k, m), ("-", -1, 0)]
        if kind == "part" and value >= 9:
            k = d.pick(3, 4, 5)
            if value % k == 0:
                text = d.pick(
                    f"{{w}} gives {PARTS[k]} of {his} {item} to {other}", f"{{w}} loses {PARTS[k]} of {his} {item}"
                )
                return text, [("/", value, k), ("-", -1, 0)]
    raise Reject


def apply(d: Draft, value: int, ops: list[tuple[str, int, int]], label: str = "", record: bool = True) -> int:
    """Run an event's operations; -1 stands for the running value, a zero operand for the last side result."""
    side, kept = 0, len(d.steps)
    for op, a, b in ops:
        result = d.calc(value if a == -1 else a, op, b or side, label)
        side = result
    if not record:
        del d.steps[kept:]
    return side


def clause(d: Draft, who: str, text: str, lead: str = "", pronoun: bool = True) -> None:
    """Say an event of `who`, with a pronoun for the subject at times where it is clear who is meant."""
    before = d.sentences[-1]
    clear = not any(name in before for name in NAMES[PRONOUN[who]] if name != who)
    subject = PRONOUN[who] if pronoun and clear and d.chance(0.6) else who
    d.say(lead + text.replace("{w}", subject) + ".")
