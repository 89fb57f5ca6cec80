"""Steps in order, branches and loops."""

from __future__ import annotations

from pocket.humaneval.draw import (
    ALL_INTS,
    INT_ARGS,
    LETTERS,
    LIST_ARGS,
    STR_ARGS,
    Draw,
    Spec,
    fill,
    satisfying,
    singular,
)


def chain(d: Draw) -> Spec:
    """Two or three whole-list or whole-string steps in order."""
    text_kind = d.chance(0.4)
    arg = d.rng.choice(STR_ARGS if text_kind else LIST_ARGS)
    y = arg
    steps: list[tuple[str, str]] = []
    last = ""
    for _ in range(d.pick(2, 2, 3)):
        k = d.num(2, 5)
        if text_kind:
            a, b = d.letter(), d.rng.choice(LETTERS + "-*")
            options = [
                ("reverse {}", "[::-1]"),
                (f"keep the first {k} characters of {{}}", f"[:{k}]"),
                (f"drop the first {k} characters of {{}}", f"[{k}:]"),
                (f"keep the last {k} characters of {{}}", f"[-{k}:]"),
                ("keep every second character of {}", "[::2]"),
                ("convert {} to upper case", ".upper()"),
                ("convert {} to lower case", ".lower()"),
                ("swap the case of {}", ".swapcase()"),
                (f"replace '{a}' with '{b}' in {{}}", f'.replace("{a}", "{b}")'),
                (f"repeat {{}} {k} times", f" * {k}"),
                (f"append '{a}' to {{}}", f' + "{a}"'),
                (f"remove '{a}' from {{}}", f'.replace("{a}", "")'),
                ("sort the characters of {} in ascending order", "SORT"),
            ]
        else:
            _, clause, cond, _ = d.pred()
            c, m = d.num(0, 9), d.num(2, 9)
            options = [
                ("sort {} in ascending order", "sorted({})"),
                ("sort {} in descending order", "sorted({}, reverse=True)"),
                ("reverse {}", "{}[::-1]"),
                (f"keep the first {k} elements of {{}}", f"{{}}[:{k}]"),
                (f"drop the first {k} elements of {{}}", f"{{}}[{k}:]"),
                (f"keep the last {k} elements of {{}}", f"{{}}[-{k}:]"),
                ("keep every second element of {}", "{}[::2]"),
                ("remove later duplicates from {}", "list(dict.fromkeys({}))"),
                (f"append {c} to {{}}", f"{{}} + [{c}]"),
                (f"put {c} in front of {{}}", f"[{c}] + {{}}"),
            ]
            options += [(f"keep the elements of {{}} that {clause}", f"[x for x in {{}} if {fill(cond, 'x')}]")] * 4
            options += [
                (f"multiply each element of {{}} by {m}", f"[x * {m} for x in {{}}]"),
                (f"add {m} to each element of {{}}", f"[x + {m} for x in {{}}]"),
                (f"subtract {m} from each element of {{}}", f"[x - {m} for x in {{}}]"),
                ("square each element of {}", "[x * x for x in {}]"),
                (f"replace each element of {{}} by its remainder modulo {m}", f"[x % {m} for x in {{}}]"),
                ("negate each element of {}", "[-x for x in {}]"),
            ]
        choice = d.rng.choice([o for o in options if o[0].split()[0] != last])
        last = choice[0].split()[0]
        steps.append(choice)
    body = []
    for i, (_, code) in enumerate(steps):
        value = f'"".join(sorted({y}))' if code == "SORT" else y + code if text_kind else code.format(y)
        body.append(f"return {value}" if i == len(steps) - 1 else f"{y} = {value}")
    phrases = [steps[0][0].format(arg)] + [p.format("it") for p, _ in steps[1:]]
    if not text_kind and d.chance(0.4):
        final = d.pick(
            ("return its sum", "sum({})", "sum"),
            ("return its length", "len({})", "len"),
            ("return its largest element, or 0 if it is empty", "max({}, default=0)", "max"),
            ("return its smallest element, or 0 if it is empty", "min({}, default=0)", "min"),
        )
        body[-1] = body[-1].replace("return ", f"{y} = ", 1)
        body.append(f"return {final[1].format(y)}")
        ending, name = f", and {final[0]}", f"chain_{final[2]}"
    else:
        ending, name = d.pick(", and return the result", " and return it"), "chain"
    first = phrases[0][0].upper() + phrases[0][1:]
    text = ", then ".join([first, *phrases[1:]]) + ending + "."
    return Spec(text, body, [(arg, "str" if text_kind else "ints")], d.pick(name, "pipeline", "steps", "edit"))


def expression(d: Draw, n: str) -> tuple[str, str]:
    """A small expression of the integer n: wording and code."""
    k = d.num(2, 12)
    return d.pick(
        (f"{n} plus {k}", f"{n} + {k}"),
        (f"{n} minus {k}", f"{n} - {k}"),
        (f"{n} times {k}", f"{n} * {k}"),
        (f"the square of {n}", f"{n} * {n}"),
        (f"the remainder of {n} divided by {k}", f"{n} % {k}"),
        (f"{n} divided by {k}, rounded down", f"{n} // {k}"),
        (f"{k} minus {n}", f"{k} - {n}"),
        (str(k), str(k)),
        (f"{n}", n),
        ("0", "0"),
        (f"{n} times {k} plus {k + 1}", f"{n} * {k} + {k + 1}"),
    )


def branch(d: Draw) -> Spec:
    """Conditions on one integer."""
    n = d.rng.choice(INT_ARGS)
    three = d.chance(0.4)
    _, clause, code, _ = d.preds(0.25)
    a, b = expression(d, n), expression(d, n)
    for _ in range(20):
        if b != a:
            break
        b = expression(d, n)
    lines = [f"if {fill(code, n)}:", f"    return {a[1]}"]
    if three:
        first = satisfying(code)
        for _ in range(50):
            _, clause2, cond2, _ = d.pred()
            second = satisfying(cond2)
            if len(second - first) > 2 and first | second != ALL_INTS:
                break
        c = expression(d, n)
        lines += [f"if {fill(cond2, n)}:", f"    return {b[1]}", f"return {c[1]}"]
        text = (
            f"If {n} {singular(clause)}, return {a[0]}. "
            f"Otherwise, if {n} {singular(clause2)}, return {b[0]}. "
            f"Otherwise return {c[0]}."
        )
    else:
        lines.append(f"return {b[1]}")
        text = d.pick(
            f"Return {a[0]} if {n} {singular(clause)}, otherwise {b[0]}.",
            f"If {n} {singular(clause)}, return {a[0]}. Otherwise return {b[0]}.",
            f"When {n} {singular(clause)}, return {a[0]}, and in all other cases {b[0]}.",
        )
    return Spec(text, lines, [(n, "int")], d.pick("choose", "branch", "pick", "decide"))


def loops(d: Draw) -> Spec:
    """Repeated steps on an integer."""
    n = d.rng.choice(INT_ARGS)
    k, c, t = d.num(2, 5), d.num(1, 9), d.num(2, 12)
    kind = d.pick("repeat", "repeat", "halve", "shrink", "grow", "power", "down", "collect")
    if kind == "repeat":
        step = d.pick(
            (f"multiply it by {k} and add {c}", f"{n} * {k} + {c}"),
            (f"add {c} and multiply it by {k}", f"({n} + {c}) * {k}"),
            (f"multiply it by {k} and subtract {c}", f"{n} * {k} - {c}"),
        )
        times = d.num(2, 5)
        return Spec(
            d.pick(
                f"Start with {n} and {times} times {step[0]}. Return the result.",
                f"Take {n}, then {times} times in a row {step[0]}, and return it.",
            ),
            [f"for _ in range({times}):", f"    {n} = {step[1]}", f"return {n}"],
            [(n, "int")],
            "repeat",
        )
    if kind == "halve":
        return Spec(
            d.pick(
                f"Return how many times {n} must be divided by {k}, rounding down, until it is at most {t}.",
                f"Divide {n} by {k}, rounding down, until it is {t} or less, and count the divisions.",
            ),
            ["count = 0", f"while {n} > {t}:", f"    {n} = {n} // {k}", "    count += 1", "return count"],
            [(n, "nat")],
            "count_steps",
        )
    if kind == "shrink":
        return Spec(
            d.pick(
                f"Subtract {c} from {n} until it is less than {t}, and return it.",
                f"While {n} is at least {t}, subtract {c} from it. Return {n}.",
            ),
            [f"while {n} >= {t}:", f"    {n} = {n} - {c}", f"return {n}"],
            [(n, "nat")],
            "reduce_to",
        )
    if kind == "grow":
        limit = d.num(20, 99)
        return Spec(
            d.pick(
                f"Multiply the positive integer {n} by {k} until it exceeds {limit}, and return it.",
                f"While the positive integer {n} is at most {limit}, multiply it by {k}. Return {n}.",
            ),
            [f"while {n} <= {limit}:", f"    {n} = {n} * {k}", f"return {n}"],
            [(n, "pos")],
            "grow",
        )
    if kind == "power":
        return Spec(
            d.pick(f"Return {k} to the power {n}, plus {c}.", f"Raise {k} to the power {n} and add {c}."),
            [f"return {k} ** {n} + {c}"],
            [(n, "nat")],
            "power",
        )
    if kind == "down":
        return Spec(
            d.pick(
                f"Return a list that counts down from {n} to 1 in steps of {k}.",
                f"List the numbers {n}, {n} - {k} and so on, while they are positive.",
            ),
            [f"return list(range({n}, 0, -{k}))"],
            [(n, "nat")],
            "countdown",
        )
    before, after, code, _ = d.map()
    return Spec(
        f"Return a list of {before}the integers from {c} to {n}{after}.",
        [f"return [{fill(code, 'i')} for i in range({c}, {n} + 1)]"],
        [(n, "nat")],
        "build_list",
    )
