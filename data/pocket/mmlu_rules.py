"""Rule-based questions of `pocket_mmlu`: calendar, letters, logic, order; and the list of all rules.

Every function takes a random.Random and returns (subject, question, right option, wrong options); at
least three wrong options differ from the right one and from each other.
"""

from __future__ import annotations

import random

from pocket.mmlu_facts import ATOMIC_NUMBERS, EVENT_YEARS, PLANETS, PRESIDENT_ORDER
from pocket.mmlu_numbers import (
    LETTERS,
    Question,
    arithmetic,
    comparison,
    geometry,
    number_theory,
    sequence,
    units,
    word_arithmetic,
)

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
WORDS = (
    "apple bread chair dance eagle flower garden house island jacket kettle lemon market night orange pencil "
    "queen river school table umbrella village window yellow zebra basket candle dragon engine forest guitar "
    "hammer insect jungle kitchen ladder mirror number object paper rabbit silver ticket voice winter answer "
    "bridge circle doctor finger ghost honey ice jar key lamp map nest oil pen rope sun tree wall"
).split()
NONSENSE = "wug dax blick fep toma zorp glim snark plon quib mib rell tove gax lorp".split()


def calendar(rng: random.Random) -> Question:
    """Days and months before and after, lengths of months, clock times."""
    kind = rng.randrange(6)
    if kind == 0:
        day, shift = rng.randrange(7), rng.choice((-3, -2, -1, 1, 2, 3))
        when = f"{abs(shift)} day{'s' * (abs(shift) > 1)} {'after' if shift > 0 else 'before'}"
        right = DAYS[(day + shift) % 7]
        return (
            "calendar",
            f"Which day is {when} {DAYS[day]}?",
            right,
            rng.sample([d for d in DAYS if d != right], 3),
        )
    if kind == 1:
        day, shift = rng.randrange(7), rng.randint(4, 30)
        right = DAYS[(day + shift) % 7]
        text = f"Today is {DAYS[day]}. Which day is it in {shift} days?"
        return "calendar", text, right, rng.sample([d for d in DAYS if d != right], 3)
    if kind == 2:
        month, shift = rng.randrange(12), rng.choice((-4, -3, -2, -1, 1, 2, 3, 4, 5))
        when = f"{abs(shift)} month{'s' * (abs(shift) > 1)} {'after' if shift > 0 else 'before'}"
        right = MONTHS[(month + shift) % 12]
        return (
            "calendar",
            f"Which month is {when} {MONTHS[month]}?",
            right,
            rng.sample([m for m in MONTHS if m != right], 3),
        )
    if kind == 3:
        length = rng.choice((30, 31))
        good = [m for m, days in zip(MONTHS, LENGTHS, strict=True) if days == length]
        bad = [m for m, days in zip(MONTHS, LENGTHS, strict=True) if days != length]
        return "calendar", f"Which month has {length} days?", rng.choice(good), rng.sample(bad, 3)
    hour, minute, gap = (
        rng.randint(1, 11),
        rng.choice((0, 10, 15, 20, 30, 40, 45)),
        rng.choice((15, 20, 30, 45, 90)),
    )
    sign = 1 if kind == 4 else -1
    start = hour * 60 + minute + (120 if sign < 0 else 0)

    def clock(total: int) -> str:
        total %= 720
        return f"{total // 60 or 12}:{total % 60:02d}"

    right = clock(start + sign * gap)
    wrong = {
        clock(start - sign * gap),
        clock(start + sign * (gap + 10)),
        clock(start + sign * gap + 60),
        clock(start + sign * gap - 60),
        clock(start + sign * (gap - 5)),
    } - {right}
    text = f"It is {clock(start)}. What time {'will it be in' if sign > 0 else 'was it'} {gap} minutes"
    return "calendar", text + (" ago?" if sign < 0 else "?"), right, rng.sample(sorted(wrong), 3)


def letters(rng: random.Random) -> Question:
    """Places of letters, first and last letters, word lengths, alphabetical order."""
    kind = rng.randrange(5)
    if kind == 0:
        place = rng.randrange(26)
        text = f"Which letter comes right after {LETTERS[place - 1]} in the alphabet?"
        if not place:
            text = "Which is the first letter of the alphabet?"
        right = LETTERS[place]
        return "alphabet", text, right, rng.sample([c for c in LETTERS if c != right], 3)
    if kind == 1:
        place = rng.randrange(26)
        near = [c for i, c in enumerate(LETTERS) if 0 < abs(i - place) <= 3]
        return (
            "alphabet",
            f"Which letter has place {place + 1} in the alphabet?",
            LETTERS[place],
            rng.sample(near, 3),
        )
    words = rng.sample(WORDS, 4)
    if kind == 2:
        target = words[0]
        wrong = [word for word in rng.sample(WORDS, 12) if len(word) != len(target)][:3]
        if len(set(wrong)) == 3:
            return "alphabet", f"Which word has {len(target)} letters?", target, wrong
    if kind == 3:
        last = rng.random() < 0.6
        index = -1 if last else 0
        wrong = [word for word in rng.sample(WORDS, 20) if word[index] != words[0][index]][:3]
        if len(wrong) == 3:
            return (
                "alphabet",
                f"Which word {'ends' if last else 'starts'} with {words[0][index]}?",
                words[0],
                wrong,
            )
    pick, name = rng.choice(((0, "first"), (3, "last")))
    right = sorted(words)[pick]
    return (
        "alphabet",
        f"Which word comes {name} in the dictionary?",
        right,
        [word for word in words if word != right],
    )


def logic(rng: random.Random) -> Question:
    """Syllogisms and orderings over made-up words and names."""
    a, b, c, d = rng.sample(NONSENSE, 4)
    kind = rng.randrange(4)
    if kind == 0:
        wrong = [
            f"every {c} is a {a}",
            f"every {b} is a {a}",
            f"no {a} is a {c}",
            f"every {a} is a {d}",
            f"no {b} is a {c}",
        ]
        return (
            "logic",
            f"Every {a} is a {b}. Every {b} is a {c}. So",
            f"every {a} is a {c}",
            rng.sample(wrong, 3),
        )
    if kind == 1:
        wrong = [
            f"every {a} is a {c}",
            f"every {c} is a {a}",
            f"every {c} is a {b}",
            f"every {b} is a {a}",
            f"every {a} is a {d}",
        ]
        return "logic", f"Every {a} is a {b}. No {b} is a {c}. So", f"no {a} is a {c}", rng.sample(wrong, 3)
    people = rng.sample(("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jan", "Kim", "Leo"), 4)
    more, most, least = rng.choice(
        (
            ("older", "oldest", "youngest"),
            ("taller", "tallest", "shortest"),
            ("faster", "fastest", "slowest"),
            ("richer", "richest", "poorest"),
        )
    )
    facts = [f"{people[i]} is {more} than {people[i + 1]}." for i in range(3)]
    if kind == 3:
        facts = facts[:2]
    rng.shuffle(facts)
    size = len(facts) + 1
    right = people[0] if rng.random() < 0.5 else people[size - 1]
    word = most if right == people[0] else least
    wrong = [person for person in people if person != right]
    return "logic", f"{' '.join(facts)} Of those named, who is the {word}?", right, wrong


def order(rng: random.Random) -> Question:
    """First or last of four known things: events, presidents, elements, planets, months."""
    subject, table, ask = rng.choice(
        (
            ("world history", EVENT_YEARS, ("Which came first?", "Which came last?")),
            ("us history", PRESIDENT_ORDER, ("Who was US president first?", "Who was US president last?")),
            ("chemistry", ATOMIC_NUMBERS, ("Which has the fewest protons?", "Which has the most protons?")),
            (
                "astronomy",
                {name: i for i, name in enumerate(PLANETS)},
                ("Which planet is closest to the Sun?", "Which planet is farthest from the Sun?"),
            ),
            (
                "calendar",
                {name: i for i, name in enumerate(MONTHS)},
                ("Which comes first in the year?", "Which comes last in the year?"),
            ),
        )
    )
    options = sorted(rng.sample(list(table), 4), key=table.__getitem__)
    last = rng.random() < 0.5
    right = options[-1 if last else 0]
    return subject, ask[last], right, [option for option in options if option != right]


def planets(rng: random.Random) -> Question:
    """Places and neighbors of the planets."""
    place = rng.randrange(8)
    right = PLANETS[place]
    kind = rng.randrange(3)
    if kind == 0 or (kind == 1 and place == 0) or (kind == 2 and place == 7):
        name = "first second third fourth fifth sixth seventh eighth".split()[place]
        text = f"Which is the {name} planet from the Sun?"
    elif kind == 1:
        text = f"Which planet comes next after {PLANETS[place - 1]}, going out from the Sun?"
    else:
        text = f"Which planet comes just before {PLANETS[place + 1]}, going out from the Sun?"
    return "astronomy", text, right, rng.sample([planet for planet in PLANETS if planet != right], 3)


RULES = [
    (arithmetic, 5),
    (word_arithmetic, 3),
    (comparison, 2),
    (number_theory, 3),
    (sequence, 3),
    (calendar, 4),
    (units, 3),
    (letters, 3),
    (logic, 3),
    (geometry, 3),
    (order, 4),
    (planets, 1),
]
