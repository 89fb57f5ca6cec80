"""Positions in a list, running results, tables and small edits."""

from __future__ import annotations

from pocket.humaneval.draw import LIST_ARGS, Draw, Spec, fill, singular


def index(d: Draw) -> Spec:
    """Positions in a list, running results, tables and small edits."""
    a = d.rng.choice(LIST_ARGS)
    k, c = d.num(1, 5), d.num(2, 12)
    args = [(a, "ints")]
    kind = d.pick(
        "get",
        "where",
        "find",
        "even",
        "running",
        "weight",
        "rotate",
        "swap",
        "change",
        "missing",
        "table",
        "chunks",
        "until",
        "every",
        "exists",
        "split",
    )
    _, clause, cond, _ = d.pred()
    x = fill(cond, "x")
    if kind == "get":
        default = d.pick(0, -1, None)
        return Spec(
            d.pick(
                f"Return the element of {a} at index {k}, or {default} if {a} is too short.",
                f"Return {a}[{k}] if it exists, otherwise {default}.",
            ),
            [f"if len({a}) > {k}:", f"    return {a}[{k}]", f"return {default}"],
            args,
            "get_at",
        )
    if kind == "where":
        return Spec(
            d.pick(
                f"Return the indices of the elements of {a} that {clause}.",
                f"List the positions, from 0, of the elements of {a} that {clause}.",
            ),
            [f"return [i for i, x in enumerate({a}) if {x}]"],
            args,
            "positions",
        )
    if kind == "find":
        return Spec(
            f"Return the index of the first element of {a} that {singular(clause)}, or -1 if there is none.",
            [f"for i, x in enumerate({a}):", f"    if {x}:", "        return i", "return -1"],
            args,
            "find_index",
        )
    if kind == "even":
        parity, code = d.pick(("even", "[::2]"), ("odd", "[1::2]"))
        before, after, expr, _ = d.map()
        if d.chance(0.5):
            return Spec(
                f"Return the sum of {before}the elements of {a} at {parity} indices{after}.",
                ["total = 0", f"for x in {a}{code}:", f"    total += {fill(expr, 'x')}", "return total"],
                args,
                "sum_at",
            )
        return Spec(
            f"Return a list of {before}the elements of {a} at {parity} indices{after}.",
            [f"return [{fill(expr, 'x')} for x in {a}{code}]"],
            args,
            "take_at",
        )
    if kind == "running":
        word, start, step = d.pick(
            ("sums", "0", "total + x"),
            ("products", "1", "total * x"),
            ("sums of squares", "0", "total + x * x"),
            ("absolute sums", "0", "total + abs(x)"),
        )
        limit = d.chance(0.4)
        if limit:
            return Spec(
                f"Return a list of the running {word} of the elements of {a} that {clause}.",
                [
                    f"total = {start}",
                    "result = []",
                    f"for x in {a}:",
                    f"    if {x}:",
                    f"        total = {step}",
                    "        result.append(total)",
                    "return result",
                ],
                args,
                "running",
            )
        return Spec(
            d.pick(f"Return a list of the running {word} of {a}.", f"List the running {word} of {a}."),
            [
                f"total = {start}",
                "result = []",
                f"for x in {a}:",
                f"    total = {step}",
                "    result.append(total)",
                "return result",
            ],
            args,
            "running",
        )
    if kind == "weight":
        code = d.pick((f"its index plus {k}", f"(i + {k})"), ("its index", "i"))
        return Spec(
            d.pick(
                f"Return the sum of the elements of {a}, each multiplied by {code[0]}.",
                f"Multiply each element of {a} by {code[0]} and return the sum.",
            ),
            ["total = 0", f"for i, x in enumerate({a}):", f"    total += x * {code[1]}", "return total"],
            args,
            "weighted_sum",
        )
    if kind == "rotate":
        side, which, where, code = d.pick(
            ("left", "first", "end", f"{a}[{k}:] + {a}[:{k}]"),
            ("right", "last", "front", f"{a}[-{k}:] + {a}[:-{k}]"),
        )
        part = f"{which} {k} elements" if k > 1 else f"{which} element"
        text = f"Move the {part} of {a} to the {where} and return the list."
        return Spec(text, [f"return {code}"], args, f"rotate_{side}")
    if kind == "swap":
        return Spec(
            d.pick(
                f"Return a copy of {a} with the first {k} elements replaced by {c}.",
                f"Return {a} after its first {k} elements, or all if there are fewer, are set to {c}.",
            ),
            [
                "result = []",
                f"for i, x in enumerate({a}):",
                f"    if i < {k}:",
                f"        result.append({c})",
                "    else:",
                "        result.append(x)",
                "return result",
            ],
            args,
            "set_first",
        )
    if kind == "change":
        new, code = d.pick(
            (str(c), str(c)),
            ("its negative", "-x"),
            ("its square", "x * x"),
            ("its double", "x * 2"),
            (f"its sum with {c}", f"x + {c}"),
        )
        return Spec(
            d.pick(
                f"Replace each element of {a} that {singular(clause)} by {new} and return the list.",
                f"Return {a} with each element that {singular(clause)} replaced by {new}.",
            ),
            [
                "result = []",
                f"for x in {a}:",
                f"    if {x}:",
                f"        result.append({code})",
                "    else:",
                "        result.append(x)",
                "return result",
            ],
            args,
            "replace",
        )
    if kind == "missing":
        d.ints.append(c)
        yes = d.chance(0.5)
        return Spec(
            f"Append {c} to {a} if it is not there yet, and return the list."
            if yes
            else f"Return the number of times {c} occurs in {a}, or -1 if it is missing.",
            [f"if {c} not in {a}:", f"    return {a} + [{c}]", f"return {a}"]
            if yes
            else [f"if {c} not in {a}:", "    return -1", f"return {a}.count({c})"],
            args,
            "add_missing" if yes else "count_value",
        )
    if kind == "table":
        key, code = d.pick((f"remainder modulo {k + 1}", f"x % {k + 1}"), ("value", "x"), ("absolute value", "abs(x)"))
        return Spec(
            d.pick(
                f"Return a dict that maps each {key} to the number of elements of {a} with it.",
                f"Group the elements of {a} by {key}: return a dict with the counts.",
            ),
            [
                "counts = {}",
                f"for x in {a}:",
                f"    counts[{code}] = counts.get({code}, 0) + 1",
                "return counts",
            ],
            args,
            "table",
        )
    if kind == "chunks":
        return Spec(
            d.pick(
                f"Split {a} into chunks of {k + 1} elements; the last one may be shorter.",
                f"Return a list of the consecutive pieces of {a} of length {k + 1}, the last maybe shorter.",
            ),
            [f"return [{a}[i:i + {k + 1}] for i in range(0, len({a}), {k + 1})]"],
            args,
            "chunks",
        )
    if kind == "until":
        if d.chance(0.5):
            return Spec(
                f"Return the elements of {a} before the first one that {singular(clause)}.",
                [
                    "result = []",
                    f"for x in {a}:",
                    f"    if {x}:",
                    "        break",
                    "    result.append(x)",
                    "return result",
                ],
                args,
                "take_until",
            )
        return Spec(
            f"Add up the elements of {a} before the first one that {singular(clause)}.",
            [
                "total = 0",
                f"for x in {a}:",
                f"    if {x}:",
                "        break",
                "    total += x",
                "return total",
            ],
            args,
            "sum_until",
        )
    if kind == "exists":
        word, fn = d.pick(("any element", "any"), ("every element", "all"))
        return Spec(
            d.pick(
                f"Return True if {word} of {a} {singular(clause)}, else False.",
                f"Check whether {word} of {a} {singular(clause)}.",
            ),
            [f"return {fn}({x} for x in {a})"],
            args,
            f"{fn}_match",
        )
    if kind == "split":
        return Spec(
            f"Return a list: first the elements of {a} that {clause}, then the other ones.",
            [f"ys = [x for x in {a} if {x}]", f"zs = [x for x in {a} if not ({x})]", "return ys + zs"],
            args,
            "partition",
        )
    return Spec(
        d.pick(
            f"Return every element of {a} whose index is a multiple of {k + 1}.",
            f"Return the elements of {a} at indices 0, {k + 1}, {2 * k + 2} and so on.",
        ),
        [f"return {a}[::{k + 1}]"],
        args,
        "every",
    )
