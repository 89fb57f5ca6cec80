"""Filters, maps and reductions of characters and words."""

from __future__ import annotations

from pocket.humaneval.draw import STR_ARGS, STRS_ARGS, Draw, Spec


def _char_pred(d: Draw) -> tuple[str, str, str]:
    """A condition on a character: noun phrase ("vowels") or "", clause, expression in c."""
    kind = d.num(0, 7)
    if kind == 0:
        return "vowels", "are vowels", 'c.lower() in "aeiou"'
    if kind == 1:
        return "uppercase letters", "are uppercase", "c.isupper()"
    if kind == 2:
        return "lowercase letters", "are lowercase", "c.islower()"
    if kind == 3:
        return "digits", "are digits", "c.isdigit()"
    if kind == 4:
        return "letters", "are letters", "c.isalpha()"
    if kind == 5:
        a = d.letter()
        return "", d.pick(f"are not '{a}'", f"differ from '{a}'"), f'c != "{a}"'
    if kind == 6:
        a = d.letter()
        return "", d.pick(f"are equal to '{a}'", f"are '{a}'"), f'c == "{a}"'
    a = "".join(sorted(set(d.letter() + d.letter() + d.letter())))
    word = d.chance(0.5)
    return (
        "",
        d.pick(f"are in '{a}'", f"occur in '{a}'") if word else f"are not in '{a}'",
        f'c in "{a}"' if word else f'c not in "{a}"',
    )


def chars(d: Draw) -> Spec:
    """Filter, map and reduce the characters of a string."""
    s = d.rng.choice(STR_ARGS)
    noun, clause, cond = _char_pred(d)
    if d.chance(0.25):
        _, clause2, cond2 = _char_pred(d)
        word = "and" if "not in" in cond2 or "!=" in cond2 else "or"
        if cond2 != cond and not (
            word == "and" and ("==" in cond or " in " in cond and "aeiou" not in cond or "!=" in cond)
        ):
            noun, clause, cond = "", f"{clause} {word} {clause2}", f"{cond} {word} {cond2}"
    thing = (
        f"{noun} in {s}"
        if noun and d.chance(0.6)
        else f"{d.pick('characters', 'characters', 'chars')} of {s} that {clause}"
    )
    kind = d.pick("count", "count", "keep", "keep", "drop", "map", "replace", "list", "first", "where", "any")
    code, after = "c", ""
    if kind == "map" or kind == "list" and d.chance(0.5):
        mark = d.pick("-", ".", "*", "!")
        after, code = d.pick(
            (", in upper case", "c.upper()"),
            (", in lower case", "c.lower()"),
            (", each written twice", "c * 2"),
            (f", each followed by '{mark}'", f'c + "{mark}"'),
            (", each with its case swapped", "c.swapcase()"),
        )
    if kind == "count":
        return Spec(
            d.pick(f"Return the number of {thing}.", f"Count the {thing}.", f"Find the number of {thing}."),
            ["count = 0", f"for c in {s}:", f"    if {cond}:", "        count += 1", "return count"],
            [(s, "str")],
            "count_chars",
        )
    if kind in ("keep", "map"):
        return Spec(
            d.pick(f"Return a string of the {thing}{after}.", f"Return the {thing}{after}, joined into a string."),
            [f'return "".join({code} for c in {s} if {cond})'],
            [(s, "str")],
            "keep_chars",
        )
    if kind == "drop":
        return Spec(
            d.pick(f"Return {s} without the {thing}.", f"Remove the {thing} and return the rest."),
            [f'return "".join(c for c in {s} if not ({cond}))'],
            [(s, "str")],
            "remove_chars",
        )
    if kind == "replace":
        mark = d.pick("-", ".", "*", "_", "x", "#")
        new = d.pick(
            (f"replaced by '{mark}'", f'"{mark}"'),
            ("changed to upper case", "c.upper()"),
            ("written twice", "c * 2"),
            ("changed to lower case", "c.lower()"),
        )
        return Spec(
            f"Return {s} with the {thing} {new[0]}.",
            [
                'result = ""',
                f"for c in {s}:",
                f"    if {cond}:",
                f"        result += {new[1]}",
                "    else:",
                "        result += c",
                "return result",
            ],
            [(s, "str")],
            "change_chars",
        )
    if kind == "list":
        return Spec(
            d.pick(f"Return a list of the {thing}{after}.", f"Collect the {thing}{after} in a list."),
            [f"return [{code} for c in {s} if {cond}]"],
            [(s, "str")],
            "list_chars",
        )
    if kind == "first":
        return Spec(
            d.pick(
                f"Return the first of the {thing}, or '' if there are none.",
                f"Find the first of the {thing}. Return '' if there are none.",
            ),
            [f"for c in {s}:", f"    if {cond}:", "        return c", 'return ""'],
            [(s, "str")],
            "first_char",
        )
    if kind == "where":
        return Spec(
            d.pick(f"Return the indices of the {thing}.", f"List the positions, from 0, of the {thing}."),
            [f"return [i for i, c in enumerate({s}) if {cond}]"],
            [(s, "str")],
            "char_positions",
        )
    word = d.pick("any", "all")
    text = (
        f"Return True if {s} has any characters that {clause}, else False."
        if word == "any"
        else f"Return True if all characters of {s} {clause.replace(' and ', ' and they ')}, else False."
    )
    if word == "all" and " or " in clause:
        word, text = "any", f"Return True if {s} has any characters that {clause}, else False."
    return Spec(text, [f"return {word}({cond} for c in {s})"], [(s, "str")], f"{word}_chars")


def words(d: Draw) -> Spec:
    """Filter, map and reduce the words of a text, or a list of strings."""
    split = d.chance(0.5)
    arg = d.rng.choice(STR_ARGS if split else STRS_ARGS)
    noun, src = ("words in " + arg, f"{arg}.split()") if split else (d.pick("strings in ", "words in ") + arg, arg)
    k = d.num(2, 5)
    a = d.letter()
    clause, cond = d.pick(
        (f"start with '{a}'", f'w.startswith("{a}")'),
        (f"begin with '{a}'", f'w.startswith("{a}")'),
        (f"end with '{a}'", f'w.endswith("{a}")'),
        (f"contain '{a}'", f'"{a}" in w'),
        (f"do not contain '{a}'", f'"{a}" not in w'),
        (f"are longer than {k} characters", f"len(w) > {k}"),
        (f"have more than {k} characters", f"len(w) > {k}"),
        (f"have at most {k} characters", f"len(w) <= {k}"),
        (f"have exactly {k} characters", f"len(w) == {k}"),
        ("have an even length", "len(w) % 2 == 0"),
        ("have an odd length", "len(w) % 2 == 1"),
        ("are the same when reversed", "w == w[::-1]"),
        (f"are shorter than {k} characters", f"len(w) < {k}"),
        ("", ""),
        ("", ""),
    )
    if clause and d.chance(0.3):
        b = d.letter()
        extra = d.pick(
            (f"end with '{b}'", f'w.endswith("{b}")'),
            (f"contain '{b}'", f'"{b}" in w'),
            (f"are longer than {k} characters", f"len(w) > {k}"),
        )
        word = d.pick("and", "or")
        if extra[1] != cond and not (clause.endswith("characters") and extra[0].endswith("characters")):
            clause, cond = f"{clause} {word} {extra[0]}", f"{cond} {word} {extra[1]}"
    thing = f"the {noun} that {clause}" if clause else f"the {noun}"
    test = f" if {cond}" if cond else ""
    kind = d.pick("count", "list", "list", "join", "length", "longest", "sorted", "table")
    before, after, code = d.pick(
        ("", "", "w"),
        ("", "", "w"),
        ("the lengths of ", "", "len(w)"),
        ("", ", in upper case", "w.upper()"),
        ("", ", each reversed", "w[::-1]"),
        ("the first letters of ", "", "w[0]"),
        ("the last letters of ", "", "w[-1]"),
        ("", ", in lower case", "w.lower()"),
        ("", f", each repeated {k} times", f"w * {k}"),
        ("", f", each cut to its first {k} characters", f"w[:{k}]"),
        ("", ", each with its first letter in upper case and the rest in lower case", "w.capitalize()"),
    )
    args = [(arg, "text" if split else "strs")]
    if kind == "count" and cond:
        return Spec(
            d.pick(f"Return the number of {thing[4:]}.", f"Count {thing}."),
            ["count = 0", f"for w in {src}:", f"    if {cond}:", "        count += 1", "return count"],
            args,
            "count_words",
        )
    if kind == "length":
        return Spec(
            d.pick(f"Return the total length of {thing}.", f"Return the sum of the lengths of {thing}."),
            [
                "total = 0",
                f"for w in {src}:",
                *([f"    if {cond}:", "        total += len(w)"] if cond else ["    total += len(w)"]),
                "return total",
            ],
            args,
            "total_length",
        )
    if kind == "longest":
        word, fn = d.pick(("longest", "max"), ("shortest", "min"))
        return Spec(
            f"Return the {word} of {thing}, the first one on ties, or '' if there are none.",
            [f"ys = [w for w in {src}{test}]", f'return {fn}(ys, key=len, default="")'],
            args,
            f"{word}_word",
        )
    if kind == "sorted":
        by, call = d.pick(
            ("in ascending order", "sorted(ys)"),
            ("by length", "sorted(ys, key=len)"),
            ("in descending order", "sorted(ys, reverse=True)"),
        )
        return Spec(
            f"Return a list of {thing}, sorted {by}.",
            [f"ys = [w for w in {src}{test}]", f"return {call}"],
            args,
            "sorted_words",
        )
    if kind == "table":
        key = d.pick(("length", "len(w)"), ("first letter", "w[0]"), ("last letter", "w[-1]"))
        return Spec(
            d.pick(
                f"Return a dict that maps each {key[0]} to the number of {thing[4:]} with it.",
                f"Group {thing} by {key[0]}: return a dict with the counts.",
            ),
            [
                "counts = {}",
                f"for w in {src}:",
                *(
                    [f"    if {cond}:", f"        counts[{key[1]}] = counts.get({key[1]}, 0) + 1"]
                    if cond
                    else [f"    counts[{key[1]}] = counts.get({key[1]}, 0) + 1"]
                ),
                "return counts",
            ],
            args,
            f"count_by_{key[0].split()[0]}",
        )
    if kind == "join" and code != "len(w)":
        sep = d.pick(",", "-", "+", ":", "", " ")
        named = "" if not sep else " with a space between them" if sep == " " else f" with '{sep}' between them"
        return Spec(
            f"Join {before}{thing}{after}{',' if after else ''} into one string{named}.",
            [f"ys = [{code} for w in {src}{test}]", f'return "{sep}".join(ys)'],
            args,
            "join_words",
        )
    return Spec(
        d.pick(
            f"Return a list of {before}{thing}{after}.",
            f"Collect {before}{thing}{after}{',' if after else ''} in a list.",
        ),
        [f"return [{code} for w in {src}{test}]"],
        args,
        "list_words",
    )
