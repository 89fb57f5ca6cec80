"""Filters, maps and reductions of integers: those in a list, a range, or the digits of a number."""

from __future__ import annotations

from pocket.humaneval.draw import INT_ARGS, LIST_ARGS, Draw, Spec, fill, satisfying


def _noun_phrase(d: Draw, adj: str, clause: str, noun: str, source: str) -> str:
    """A noun phrase: "the even numbers in xs" or "the numbers in xs that are even"."""
    if adj and d.chance(0.6):
        return f"the {adj} {noun} {source}"
    return f"the {noun} {source} that {clause}" if clause else f"the {noun} {source}"


def _reduction(
    d: Draw,
    x: str,
    loop: str,
    noun: str,
    map_: tuple[str, str, str, str],
    cond: str,
    mname: str,
    pname: str,
    kinds: tuple[str, ...],
) -> tuple[str, list[str], str]:
    """Wording, body and name of a reduction of `noun` (filtered by `cond` unless "") over `for x in loop`."""
    before, after, code, _ = map_
    kind = d.rng.choice(kinds)
    thing = f"{before}{noun}{after}"
    closed = thing + "," if after else thing
    plain = code == x
    suffix = "_".join(part for part in (mname, pname) if part)
    gen = f"{code} for {x} in {loop}" + (f" if {cond}" if cond else "")
    head = [f"for {x} in {loop}:"] + ([f"    if {cond}:"] if cond else [])
    pad = "        " if cond else "    "
    if kind == "sum":
        text = d.pick(
            "Return the sum of {}.",
            "Add up {}.",
            "Compute the sum of {}.",
            "Return the total of {}.",
            "Find the sum of {}.",
        )
        return (
            text.format(thing),
            ["total = 0", *head, f"{pad}total += {code}", "return total"],
            f"sum_{suffix}",
        )
    if kind == "product":
        text = d.pick("Return the product of {}.", "Multiply {} together.")
        return (
            text.format(closed if "together" in text else thing),
            ["result = 1", *head, f"{pad}result *= {code}", "return result"],
            f"product_{suffix}",
        )
    if kind == "count" and plain and cond:
        bare = noun.removeprefix("the ")
        text = d.pick(
            f"Return the number of {bare}.",
            f"Count {noun}.",
            f"Return the count of {bare}.",
            f"Find the number of {bare}.",
        )
        return text, ["count = 0", *head, f"{pad}count += 1", "return count"], f"count_{suffix}"
    if kind in ("max", "min"):
        default = d.pick(0, 0, -1)
        word = d.pick("largest", "maximum") if kind == "max" else d.pick("smallest", "minimum")
        text = d.pick(
            f"Return the {word} of {{}}, or {default} if there are none.",
            f"Find the {word} of {{}}. Return {default} if there are none.",
        )
        return (
            text.format(thing),
            [f"ys = [{gen}]", f"return {kind}(ys, default={default})"],
            f"{kind}_{suffix}",
        )
    if kind == "sorted":
        down = d.chance(0.5)
        order = d.pick("descending", "decreasing") if down else d.pick("ascending", "increasing")
        text = d.pick(f"Return {{}}, sorted in {order} order.", f"Return the sorted list ({order}) of {{}}.")
        return (
            text.format(thing),
            [f"ys = [{gen}]", "return sorted(ys, reverse=True)" if down else "return sorted(ys)"],
            f"sorted_{suffix}",
        )
    if kind == "first" and cond:
        default = d.pick(0, -1, None)
        text = d.pick(
            f"Return the first of {{}}, or {default} if there are none.",
            f"Find the first of {{}}. Return {default} if there are none.",
        )
        return text.format(thing), [*head, f"{pad}return {code}", f"return {default}"], f"first_{suffix}"
    if kind == "distinct":
        return (
            d.pick("Return the number of distinct values among {}.", "Count the distinct values among {}.").format(
                thing
            ),
            [f"ys = [{gen}]", "return len(set(ys))"],
            f"distinct_{suffix}",
        )
    if kind == "join":
        sep = d.pick(",", "-", "+", ":", "/", " ")
        named = "a space" if sep == " " else f"'{sep}'"
        return (
            d.pick(
                f"Join {{}} into one string, separated by {named}.",
                f"Return {{}} as one string with {named} between them.",
            ).format(closed),
            [f"ys = [{gen}]", f'return "{sep}".join(str(y) for y in ys)'],
            f"join_{suffix}",
        )
    text = d.pick(
        f"Return a list of {thing}.",
        f"Return the list of {thing}.",
        f"List {closed} in order.",
        f"Return {closed} as a list.",
        f"Collect {closed} in a list.",
    )
    return text, [f"return [{gen}]"], f"list_{suffix}"


_IDENTITY = ("", "", "{x}", "")
_REDUCTIONS = (
    "sum",
    "sum",
    "product",
    "count",
    "count",
    "max",
    "min",
    "sorted",
    "first",
    "distinct",
    "join",
    "list",
    "list",
)


def ints(d: Draw) -> Spec:
    """Filter, map and reduce a list of integers."""
    arg = d.rng.choice(LIST_ARGS)
    shape = d.pick("filter", "filter", "both", "both", "map")
    adj, clause, cond, pname = d.preds() if shape != "map" else ("", "", "", "")
    map_ = _IDENTITY if shape == "filter" else d.map()
    noun = _noun_phrase(d, adj, clause, d.pick("numbers", "numbers", "elements", "integers"), f"in {arg}")
    map_ = (map_[0], map_[1], fill(map_[2], "x"), map_[3])
    text, body, name = _reduction(d, "x", arg, noun, map_, fill(cond, "x"), map_[3], pname, _REDUCTIONS)
    return Spec(text, body, [(arg, "ints")], name)


def ranges(d: Draw) -> Spec:
    """Filter, map and reduce the integers from 1 to n, or the digits of n."""
    n = d.rng.choice(INT_ARGS)
    digits = d.chance(0.4)
    shape = d.pick("filter", "both", "map")
    domain = frozenset(range(10) if digits else range(1, 26))
    for _ in range(50):
        adj, clause, cond, pname = d.pred() if shape != "map" else ("", "", "", "")
        holds = satisfying(cond) & domain if cond else frozenset()
        if shape == "map" or 1 < len(holds) < len(domain):
            break
    else:
        return ranges(d)
    map_ = _IDENTITY if shape == "filter" else d.map()
    var = "x" if digits else "i"
    source = (
        f"of the non-negative integer {n}" if digits else d.pick(f"from 1 to {n}", f"from 1 up to and including {n}")
    )
    noun = _noun_phrase(d, adj, clause, "digits" if digits else d.pick("integers", "numbers"), source)
    map_ = (map_[0], map_[1], fill(map_[2], var), map_[3])
    loop = "ys" if digits else f"range(1, {n} + 1)"
    text, body, name = _reduction(
        d,
        var,
        loop,
        noun,
        map_,
        fill(cond, var),
        map_[3],
        pname,
        ("sum", "sum", "count", "product", "list", "max"),
    )
    if digits:
        if body[0].startswith("ys ="):
            body[0] = body[0].replace("ys =", "zs =")
            body[1] = body[1].replace("(ys", "(zs")
        body.insert(0, f"ys = [int(c) for c in str({n})]")
    return Spec(text, body, [(n, "nat" if not digits else "digits")], name)
