"""The README's table of what can be combined, read off the code: ``python -m jot.analysis.support`` prints it."""

from __future__ import annotations

import itertools

from jot.errors import UserError
from jot.models import FAMILIES
from jot.runs.settings import REFUSED, build_decode, build_method
from jot.sampler.cache import MODES
from jot.sampler.exits import METHODS

BEGIN, END = "<!-- support: begin -->", "<!-- support: end -->"


def works(family_class, method: str, **settings) -> bool:
    """Whether a method of that name resolves with these decoding settings."""
    try:
        build_method(method, family_class.family, {})
        build_decode(family_class, {"length": 64, **settings}, method=method)
    except UserError:
        return False
    return True


def table() -> str:
    """Markdown: per method, family and cache, whether it works whole and in blocks, greedy and sampled, and guided."""
    families = [family_class for _, family_class, _ in FAMILIES.values()]
    caches = (None, *MODES)
    head = [f"{f.family} {cache or 'no cache'}" for f, cache in itertools.product(families, caches)]
    lines = ["| method | " + " | ".join(head) + " |", "| --- |" + " --- |" * len(head)]
    for method in METHODS:
        cells = []
        for family_class, cache in itertools.product(families, caches):
            ways = [dict(block_length=b, temperature=t) for b, t in itertools.product((None, 32), (0.0, 0.5))]
            plain = all(works(family_class, method, cache=cache, **way) for way in ways)
            guided = works(family_class, method, cache=cache, guidance=1.0)
            cells.append(("yes" if plain else "no") + ("" if guided else ", no guidance"))
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    refused = "; ".join(f"`{name}` ({why})" for name, why in REFUSED.items())
    return "\n".join([*lines, "", f"Refused by name: {refused}."])


if __name__ == "__main__":
    print(table())
