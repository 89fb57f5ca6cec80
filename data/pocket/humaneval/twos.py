"""Two integers, two lists, or neighbors in a list."""

from __future__ import annotations

from pocket.humaneval.control import expression
from pocket.humaneval.draw import LIST_ARGS, Draw, Spec, fill


def pairs(d: Draw) -> Spec:
    """Two integers, two lists, or neighbors in a list."""
    kind = d.pick("two", "two", "zip", "zip", "near", "near")
    if kind == "two":
        a, b = d.pick(("a", "b"), ("m", "n"), ("p", "q"), ("x", "y"), ("first", "second"))
        e1, e2 = expression(d, a), expression(d, b)
        op = d.pick("cmp", "cmp", "max", "sum")
        if op == "cmp":
            word, code = d.pick(("greater than", ">"), ("less than", "<"), ("equal to", "=="), ("at least", ">="))
            return Spec(
                d.pick(
                    f"Return {e1[0]} if {a} is {word} {b}, otherwise {e2[0]}.",
                    f"If {a} is {word} {b}, return {e1[0]}. Otherwise return {e2[0]}.",
                ),
                [f"if {a} {code} {b}:", f"    return {e1[1]}", f"return {e2[1]}"],
                [(a, "int"), (b, "int")],
                "compare",
            )
        if op == "max":
            word, fn = d.pick(("larger", "max"), ("smaller", "min"))
            k, m = d.num(1, 9), d.num(2, 9)
            one, two = d.pick(
                ((f"{a} plus {k}", f"{a} + {k}"), (f"{b} times {m}", f"{b} * {m}")),
                ((f"{a} times {m}", f"{a} * {m}"), (f"{b} minus {k}", f"{b} - {k}")),
            )
            return Spec(
                f"Return the {word} of {one[0]} and {two[0]}.",
                [f"return {fn}({one[1]}, {two[1]})"],
                [(a, "int"), (b, "int")],
                fn + "_of_two",
            )
        k, m, c = d.num(2, 9), d.num(2, 9), d.num(1, 9)
        return Spec(
            d.pick(
                f"Return {k} times {a} plus {m} times {b}, minus {c}.",
                f"Compute {k} times {a} plus {m} times {b} minus {c}.",
            ),
            [f"return {k} * {a} + {m} * {b} - {c}"],
            [(a, "int"), (b, "int")],
            "combine",
        )
    how, code = d.pick(
        ("sums", "x + y"),
        ("products", "x * y"),
        ("differences", "x - y"),
        ("larger ones", "max(x, y)"),
        ("smaller ones", "min(x, y)"),
    )
    if kind == "zip":
        a, b = d.pick(("a", "b"), ("xs", "ys"), ("left", "right"), ("p", "q"))
        loop, args = f"zip({a}, {b})", [(a, "ints"), (b, "ints")]
        where = f"of the paired elements of {a} and {b}"
        cond_where = f"pairs of elements x of {a} and y of {b} at the same index"
    else:
        a = d.rng.choice(LIST_ARGS)
        loop, args = f"zip({a}, {a}[1:])", [(a, "ints")]
        where = f"of neighbors in {a}"
        cond_where = f"pairs of neighbors x, y in {a}"
        if code == "x - y":
            how, code = "differences (next minus current)", "y - x"
    if d.chance(0.35):
        words, cond = d.pick(
            ("x is less than y", "x < y"),
            ("x is greater than y", "x > y"),
            ("x equals y", "x == y"),
            ("x plus y is even", "(x + y) % 2 == 0"),
            (f"x plus y exceeds {(k := d.num(3, 25))}", f"x + y > {k}"),
            (f"x and y differ by more than {(j := d.num(1, 9))}", f"abs(x - y) > {j}"),
        )
        if d.chance(0.5):
            return Spec(
                d.pick(
                    f"Return the number of {cond_where} where {words}.",
                    f"Count the {cond_where} where {words}.",
                ),
                [
                    "count = 0",
                    f"for x, y in {loop}:",
                    f"    if {cond}:",
                    "        count += 1",
                    "return count",
                ],
                args,
                "count_pairs",
            )
        value = d.pick(("x", "x"), ("y", "y"), ("x + y", "x + y"), ("x * y", "x * y"))
        return Spec(
            f"For all {cond_where} where {words}, return the sum of {value[0]}.",
            [
                "total = 0",
                f"for x, y in {loop}:",
                f"    if {cond}:",
                f"        total += {value[1]}",
                "return total",
            ],
            args,
            "sum_pairs",
        )
    red = d.pick("list", "sum", "filter", "max")
    if red == "list":
        return Spec(
            d.pick(f"Return a list of the {how} {where}.", f"List the {how} {where}."),
            [f"return [{code} for x, y in {loop}]"],
            args,
            "pair_list",
        )
    if red == "sum":
        return Spec(
            d.pick(f"Return the sum of the {how} {where}.", f"Add up the {how} {where}."),
            ["total = 0", f"for x, y in {loop}:", f"    total += {code}", "return total"],
            args,
            "pair_sum",
        )
    if red == "max":
        fn, word = d.pick(("max", "largest"), ("min", "smallest"))
        return Spec(
            f"Return the {word} of the {how} {where}, or 0 if there are none.",
            [f"zs = [{code} for x, y in {loop}]", f"return {fn}(zs, default=0)"],
            args,
            f"{fn}_pair",
        )
    _, clause, cond, _ = d.pred()
    return Spec(
        f"Return a list of the {how} {where} that {clause}.",
        [f"zs = [{code} for x, y in {loop}]", f"return [z for z in zs if {fill(cond, 'z')}]"],
        args,
        "filter_pairs",
    )
