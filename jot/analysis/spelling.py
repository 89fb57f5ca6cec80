"""Values with their intervals as text, with decimals enough that nothing but 0 prints as 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pandas as pd

ZERO = 1e-9  # below it a number is the 0 of an exact limit, left by floating point
MORE = 2  # decimals that may be added


def decimals(numbers: Iterable[float], digits: int) -> int:
    """The fewest decimals, ``digits`` at least, that print no number other than 0 as 0.

    Where two more are not enough, one more is taken: the number is then as good as 0 beside its neighbors.
    """
    known = [abs(x) for x in numbers if not math.isnan(x) and abs(x) > ZERO]
    enough = (more for more in range(MORE + 1) if all(float(f"{x:.{digits + more}f}") for x in known))
    return digits + next(enough, 1)


def number(value: float, digits: int, sign: str = "") -> str:
    """A number without a negative zero; ``sign`` is ``"+"`` to print one always."""
    text = f"{value:{sign}.{digits}f}"
    return text if float(text) else f"{0.0:{sign}.{digits}f}"


def interval(
    value: float, low: float, high: float, digits: int = 1, sign: str = "", unit: str = "", gap: str = "\n",
    comma: str = ", ",
) -> str:  # fmt: skip
    """``+0.30\\n[+0.02, +0.69]``: more decimals than ``digits`` where a limit or the half-width would print as 0."""
    digits = decimals((low, high, (high - low) / 2), digits)
    value, low, high = (number(x, digits, sign) for x in (value, low, high))
    return f"{value}{unit}{gap}[{low}{comma}{high}]"


def of(row: Mapping, name: str, digits: int = 1, sign: str = "", empty: str = "", **how: str) -> str:
    """``interval`` of a row's ``name``, ``name_low`` and ``name_high``; ``empty`` where there is no value."""
    value = row.get(name)
    if value is None or pd.isna(value):
        return empty
    return interval(value, row[f"{name}_low"], row[f"{name}_high"], digits, sign, **how)
