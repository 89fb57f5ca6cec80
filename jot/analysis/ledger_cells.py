"""The cells of the paper's tables as the claims ledger names them, and numbers that know how they were printed.

Scores are in percent, differences in points, speedups are factors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import published
from jot.errors import UserError

MODELS = {"dream": "Dream-7B", "llada": "LLaDA-8B"}
PARAMETERS = {"tau": "tau_max", "tau_min": "tau_min", "gamma": "gamma", "window": "window"}
SAMPLES = {"gsm8k": 1319, "humaneval": 164}  # the caption of the paper's main table
TASKS = ("gsm8k", "mmlu", "hellaswag", "humaneval")


class Finding(NamedTuple):
    """Whether a claim holds, and the numbers that say so."""

    holds: bool
    detail: str


class Printed(float):
    """A number as the paper prints it: its value, in ``text`` the digits that say how it was rounded, and in
    ``name`` what it is the number of."""

    text: str
    name: str

    def __new__(cls, text: str, name: str = "") -> Printed:
        made = super().__new__(cls, text)
        made.text, made.name = str(text), name
        return made

    @property
    def digits(self) -> int:
        """Decimals printed; for ``1e-9`` as many as it takes to write it out."""
        mantissa, _, exponent = self.text.lower().partition("e")
        return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))

    def fits(self, value: float) -> bool:
        """True when ``value``, rounded to the digits printed, is this number; either way at an exact half."""
        return abs(value - self) <= 0.5 * 10**-self.digits + 1e-9 * max(1.0, abs(self))


def show(value: object) -> str:
    """A number as text: the printed digits, or four significant ones."""
    if isinstance(value, Printed):
        return f"{value.text} ({value.name})" if value.name else value.text
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(show, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def span(values: Sequence[float], spec: str) -> str:
    """``low to high``, or the one value."""
    low, high = format(min(values), spec), format(max(values), spec)
    return low if low == high else f"{low} to {high}"


# --- cells --------------------------------------------------------------------------------------------------


@cache
def _read(folder: str, label: str) -> pd.DataFrame:
    return published.load(label)


def paper_table(label: str) -> pd.DataFrame:
    return _read(str(published.folder()), label)


def rows(words: str) -> pd.DataFrame:
    """The rows of a table that fit ``"<label> word word ..."``; a word is a model, method, task or metric, a
    parameter (``tau=90``), or ``plain`` for rows without spatial modulation.

    Raises:
        UserError: an unknown word, or no such row.
    """
    return _rows(str(published.folder()), words)


@cache
def _rows(folder: str, words: str) -> pd.DataFrame:
    label, *rest = words.split()
    frame = _read(folder, label)
    column = {name: frame[name].to_numpy() for name in frame}
    fits = np.ones(len(frame), dtype=bool)
    for word in rest:
        name, _, value = word.partition("=")
        if value:
            fits &= column[PARAMETERS.get(name, name)] == float(value)
        elif word == "plain":
            fits &= np.isnan(column["gamma"])
        else:
            known = MODELS.get(word, word)
            hits = [column[c] == known for c in ("model", "method", "task", "metric") if c in column]
            hits = [hit for hit in hits if (hit & fits).any()]
            if not hits:
                raise UserError(f"ledger: {word!r} names no row in {words!r}")
            fits &= hits[0]
    if not fits.any():
        raise UserError(f"ledger: no cell of the paper fits {words!r}")
    return frame[fits]


def _texts(frame: pd.DataFrame) -> list[Printed]:
    return [Printed(f"{v:.{d}f}") for v, d in zip(frame["value"], frame["digits"], strict=True) if not math.isnan(v)]


def _name(words: str) -> str:
    """Words without the table's label and the parameter names that say nothing: ``dream jot gsm8k, tau 30``."""
    plain = [w for w in words.split()[1:] if "=" not in w]
    return ", ".join([" ".join(plain), *(w.replace("=", " ") for w in words.split() if "=" in w)])


def cells(words: str) -> list[Printed]:
    """All printed numbers of the rows that fit, in the table's order; dashes are left out."""
    return _texts(rows(words))


def cell(words: str) -> Printed:
    """The one printed number that fits."""
    found = cells(words)
    if len(found) != 1:
        raise UserError(f"ledger: {len(found)} cells of the paper fit {words!r}; one is needed")
    return Printed(found[0].text, _name(words))


def gaps(words: str) -> list[float]:
    """Scores minus full decoding's of the same table (of the main table where it has none), in points."""
    frame = rows(words + " score")
    base = paper_table(words.split()[0])
    if "method" not in base or not (base["method"] == "full").any():
        base = paper_table("main_results")
    base = base[(base["method"] == "full") & (base["metric"] == "score")]
    found = []
    for _, row in frame[frame["method"] != "full"].dropna(subset="value").iterrows():
        same = base[base["task"] == row["task"]]
        if "model" in same:
            same = same[same["model"] == row["model"]]
        found.append(round(row["value"] - same["value"].iloc[0], 6))
    return found


def gap(words: str) -> Printed:
    """The one gap that fits, to a tenth of a point as the scores are printed."""
    found = gaps(words)
    if len(found) != 1:
        raise UserError(f"ledger: {len(found)} scores of the paper fit {words!r}; one is needed")
    return Printed(f"{found[0]:+.1f}", _name(words) + " minus full")


def speed_mean(words: str) -> float:
    """Geometric mean over the four benchmarks of a method's step speedups in the main table."""
    return stats.geometric_mean(cells(f"main_results {words} speedup"))


def kept(words: str) -> float:
    """Mean over the four benchmarks of a method's score ratio to full decoding, in percent."""
    model = words.split()[0]
    return stats.retention(cells(f"main_results {words} score"), cells(f"main_results {model} full score"))


def setting(method: str, family: str, name: str) -> object:
    """What this package uses for a parameter of a method or of its decoding, unless told otherwise."""
    from jot.models import FAMILIES
    from jot.runs import settings

    model = next(model for _, model, _ in FAMILIES.values() if model.family == family)
    rule = settings.build_method(method, family, {})
    decode = settings.build_decode(model, {}, None, method=method)
    found = dataclasses.asdict(decode) | dataclasses.asdict(rule)
    if name not in found:
        raise UserError(f"ledger: {method} has no setting {name!r}")
    return found[name]
