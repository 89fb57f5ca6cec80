"""Questions of `pocket_mmlu` about numbers: arithmetic, comparison, primes, sequences, units, shapes.

Every function takes a random.Random and returns (subject, question, right option, wrong options); at
least three wrong options differ from the right one and from each other.
"""

from __future__ import annotations

import math
import random

Question = tuple[str, str, str, list[str]]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
UNITS = [
    ("meter", "meters", "centimeters", 100),
    ("kilometer", "kilometers", "meters", 1000),
    ("centimeter", "centimeters", "millimeters", 10),
    ("hour", "hours", "minutes", 60),
    ("minute", "minutes", "seconds", 60),
    ("day", "days", "hours", 24),
    ("week", "weeks", "days", 7),
    ("kilogram", "kilograms", "grams", 1000),
    ("foot", "feet", "inches", 12),
    ("yard", "yards", "feet", 3),
    ("dozen", "dozen", "eggs", 12),
    ("year", "years", "months", 12),
    ("liter", "liters", "milliliters", 1000),
    ("decade", "decades", "years", 10),
    ("dollar", "dollars", "cents", 100),
]


def _near(rng: random.Random, value: int, extra: tuple[int, ...] = (), low: int = 0) -> list[str]:
    """Three wrong numbers: likely slips first, then neighbors, never the value itself."""
    wrong: list[int] = []
    pool = [number for number in extra if number != value and number >= low]
    rng.shuffle(pool)
    steps = [1, -1, 2, -2, 10, -10, 3, -3, 20, 11, 9, -9]
    rng.shuffle(steps)
    for number in pool[: rng.randint(1, 3)] + [value + step for step in steps] + [value + 4, value + 5, value + 6]:
        if number != value and number >= low and number not in wrong:
            wrong.append(number)
        if len(wrong) == 3:
            break
    return [str(number) for number in wrong]


def arithmetic(rng: random.Random) -> Question:
    """One operation on numbers up to three digits, or two operations on small ones."""
    kind = rng.randrange(6)
    if kind == 0:
        a, b = rng.randint(11, 99), rng.randint(11, 99)
        text, value, slips = f"{a} + {b}", a + b, (a + b - 10, a + b + 10)
    elif kind == 1:
        a, b = rng.randint(100, 499), rng.randint(100, 499)
        text, value, slips = f"{a} + {b}", a + b, (a + b - 10, a + b + 100, a + b - 100)
    elif kind == 2:
        b, value = rng.randint(11, 99), rng.randint(3, 99)
        a = b + value
        text, slips = f"{a} - {b}", (value + 10, value - 10)
    elif kind == 3:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        text, value, slips = f"{a} x {b}", a * b, (a * b + a, a * b - b, a + b)
    elif kind == 4:
        b, value = rng.randint(2, 12), rng.randint(2, 12)
        text, slips = f"{b * value} / {b}", (value + 1, value - 1, b)
    else:
        a, b, c = rng.randint(2, 20), rng.randint(2, 9), rng.randint(2, 9)
        text, value, slips = f"{a} + {b} x {c}", a + b * c, ((a + b) * c, a * b + c, a + b + c)
    ask = rng.choice(("What is {}?", "The value of {} is", "Compute {}."))
    return "arithmetic", ask.format(text), str(value), _near(rng, value, slips)


def word_arithmetic(rng: random.Random) -> Question:
    """Percentages, fractions, averages, remainders."""
    kind = rng.randrange(5)
    if kind == 0:
        percent, base = rng.choice((10, 20, 25, 50, 75)), rng.randint(1, 20) * 20
        value = percent * base // 100
        text, slips = f"What is {percent}% of {base}?", (value * 2, base - value, value // 2)
    elif kind == 1:
        value, divisor = rng.randint(2, 30), rng.choice((2, 3, 4, 5))
        name = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[divisor]
        text, slips = f"What is {name} of {value * divisor}?", (value * 2, value + divisor, value - 1)
    elif kind == 2:
        value, spread = rng.randint(6, 40), rng.randint(1, 5)
        low, high = value - spread, value + spread
        text, slips = f"What is the average of {low} and {high}?", (2 * value, high, low)
    elif kind == 3:
        divisor, quotient, value = rng.randint(3, 9), rng.randint(2, 9), 0
        value = rng.randrange(divisor)
        text = f"What is the remainder of {divisor * quotient + value} divided by {divisor}?"
        slips = (quotient, divisor, value + 1)
    else:
        value = rng.randint(3, 30)
        text, slips = f"Twice a number is {2 * value}. What is the number?", (4 * value, value + 2, 2 * value)
    return "arithmetic", text, str(value), _near(rng, value, slips)


def comparison(rng: random.Random) -> Question:
    """Largest, smallest, or between."""
    digits = rng.choice((2, 2, 3, 4))
    low, high = 10 ** (digits - 1), 10**digits - 1
    if rng.random() < 0.5:  # close numbers
        low = rng.randint(low, high - 40)
        high = low + 40
    numbers = sorted(rng.sample(range(low, high + 1), 4))
    kind = rng.randrange(4)
    if kind == 3:
        below, right = numbers[1], numbers[2]
        wrong = [str(number) for number in (numbers[0], numbers[3] + rng.randint(1, 9), below - 1)]
        if len({str(right), *wrong}) == 4:
            return "numbers", f"Which number lies between {below} and {numbers[3]}?", str(right), wrong
    word, right = (("largest", numbers[3]), ("smallest", numbers[0]), ("second largest", numbers[2]))[kind % 3]
    text = rng.choice(("Which number is the {}?", "Which is the {} of these numbers?")).format(word)
    return "numbers", text, str(right), [str(number) for number in numbers if number != right]


def number_theory(rng: random.Random) -> Question:
    """Parity, divisibility, primes and squares: one number of four has the property."""
    kind = rng.randrange(5)
    if kind == 4:
        root = rng.randint(2, 15)
        return (
            "number theory",
            f"What is the square of {root}?",
            str(root**2),
            _near(rng, root**2, (2 * root, (root - 1) ** 2, (root + 1) ** 2)),
        )
    if kind == 0:
        word, test, top = rng.choice((("even", 0, 400), ("odd", 1, 400)))
        good = [number for number in range(10, top) if number % 2 == test]
        bad = [number for number in range(10, top) if number % 2 != test]
    elif kind == 1:
        divisor = rng.choice((3, 4, 5, 6, 7, 9, 10))
        word = f"divisible by {divisor}"
        good = [number for number in range(10, 100) if number % divisor == 0]
        bad = [number for number in range(10, 100) if number % divisor]
    elif kind == 2:
        word = "prime"
        good = [n for n in range(11, 98) if all(n % d for d in range(2, math.isqrt(n) + 1))]
        bad = [n for n in range(11, 98, 2) if n not in good]
    else:
        word = "a square number"
        good = [number**2 for number in range(4, 21)]
        bad = [number for number in range(12, 400) if math.isqrt(number) ** 2 != number]
    right = str(rng.choice(good))
    text = rng.choice(("Which number is {}?", "Which of these is {}?")).format(word)
    return "number theory", text, right, [str(number) for number in rng.sample(bad, 3)]


def sequence(rng: random.Random) -> Question:
    """The next number of an arithmetic, doubling, alternating or square sequence; the next letter."""
    kind = rng.randrange(5)
    if kind == 0:
        start, step = rng.randint(1, 60), rng.randint(2, 12)
        row = [start + step * i for i in range(5)]
    elif kind == 1:
        step = rng.randint(2, 9)
        start = rng.randint(5 * step, 99)
        row = [start - step * i for i in range(5)]
    elif kind == 2:
        start, factor = rng.randint(1, 9), rng.choice((2, 2, 3))
        row = [start * factor**i for i in range(5)]
    elif kind == 3:
        start, a, b = rng.randint(1, 40), rng.randint(1, 9), rng.randint(1, 9)
        row = [start, start + a, start + a + b, start + 2 * a + b, start + 2 * a + 2 * b]
    else:
        start, step = rng.randrange(14), rng.choice((1, 2, 3))
        letters = [LETTERS[start + step * i] for i in range(4)]
        near = [start + 3 * step + shift for shift in (-2, -1, 1, 2) if start + 3 * step + shift < 26]
        return (
            "sequences",
            f"Which letter comes next: {', '.join(letters[:3])}?",
            letters[3],
            [LETTERS[i] for i in rng.sample(near, 3)],
        )
    ask = rng.choice(("Which number comes next: {}?", "Continue the row: {}."))
    slips = (row[4] + 1, 2 * row[3], row[3] + 1, row[4] + row[1] - row[0])
    return "sequences", ask.format(", ".join(map(str, row[:4]))), str(row[4]), _near(rng, row[4], slips)


def units(rng: random.Random) -> Question:
    """Conversion between two units, in both directions."""
    one, many, small, factor = rng.choice(UNITS)
    count = rng.randint(1, 9) if factor >= 60 else rng.randint(1, 12)
    name = one if count == 1 else many
    if rng.random() < 0.6:
        slips = (
            count * factor * 10,
            count * (10 if factor != 10 else 100),
            (count + 1) * factor,
            count + factor,
        )
        text, value = f"How many {small} are in {count} {name}?", count * factor
    else:
        slips = (count * 10, count + 1, count + 2, max(count // 2, 1))
        text, value = f"How many {many} are {count * factor} {small}?", count
    return "measurement", text, str(value), _near(rng, value, slips, low=1)


def geometry(rng: random.Random) -> Question:
    """Areas, perimeters, angles, corners."""
    kind = rng.randrange(5)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    if kind == 0:
        text, value, slips = (
            f"What is the area of a {a} by {b} rectangle?",
            a * b,
            (2 * (a + b), a + b, a * b + a),
        )
    elif kind == 1:
        text, value = f"What is the perimeter of a {a} by {b} rectangle?", 2 * (a + b)
        slips = (a * b, a + b, 2 * a + b)
    elif kind == 2:
        text, value = f"What is the perimeter of a square with side {a}?", 4 * a
        slips = (a * a, 2 * a, 3 * a)
    elif kind == 3:
        x, y = rng.randint(2, 9) * 10, rng.randint(2, 8) * 10
        text, value = f"Two angles of a triangle are {x} and {y} degrees. What is the third?", 180 - x - y
        slips = (180 - x, x + y, value + 10, value - 10)
    else:
        name, value = rng.choice((("triangle", 3), ("square", 4), ("pentagon", 5), ("hexagon", 6), ("octagon", 8)))
        count = rng.randint(1, 6)
        text = f"How many sides have {count} {name}s in all?" if count > 1 else f"How many sides has a {name}?"
        slips, value = (value * (count + 1), value + count, (value + 1) * count), value * count
    return "geometry", text, str(value), _near(rng, value, slips, low=1)
