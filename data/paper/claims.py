"""The claims ledger: every number and comparison of the paper's prose, ``data/paper/claims.yaml``, with the line of
notebook 00 that checks it.

An entry has an ``id``, its place in the paper (``section``), the ``claim`` in our own words and a ``kind``. Numbers
that the prose prints stand under ``value`` as text, so that their digits say how they were rounded; a check takes them
by name, and so does ``{name}`` in the claim. ``context`` holds further printed numbers that only say where the claim
applies; ``reading`` how a vague word was read; ``ours`` marks a check of what the paper implies and states nowhere, not
counted among its claims; ``grade`` says of a claim that fails what kind of failure it is,
``same`` which entry makes the same statement. Scores are in percent,
differences in points, speedups are factors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml
from transcribe import TABLES

from jot.errors import UserError
from jot.models import home

MODELS = {"dream": "Dream-7B", "llada": "LLaDA-8B"}
PARAMETERS = {"tau": "tau_max", "tau_min": "tau_min", "gamma": "gamma", "window": "window"}
KINDS = {
    "arithmetic": "a number that follows from the paper's other numbers",
    "theorem": "a statement with a proof, checked by exact sums over a small process",
    "comparison": "an ordering or a statement about the paper's own tables",
    "setting": "a configuration that the paper states, against what this package uses",
    "phenomenon": "an effect, looked for in the embedded models' recorded runs",
    "full-size": "a measurement that nothing here can repeat without the 7B and 8B weights",
}
VERDICTS = ("fails", "not seen", "undecided", "not shown", "needs the full-size weights", "seen", "holds")
GRADES = ("contradicts its own table", "depends on the reading", "transcription")

# --- numbers and findings -----------------------------------------------------------------------------------


class Finding(NamedTuple):
    """Whether a claim holds, and the numbers that say so."""

    holds: bool
    detail: str

    def __bool__(self) -> bool:
        return bool(self.holds)


def every(*parts: Finding) -> Finding:
    """All parts hold; where some do not, only those are told."""
    broken = [part for part in parts if not part]
    return Finding(not broken, "; ".join(part.detail for part in broken or parts))


class Number(float):
    """A number, as the paper prints it where ``text`` is given: its digits say how it was rounded, ``name`` what it is
    the number of. Comparisons give a `Finding` with both sides; ``==`` with a printed number holds when the other side
    rounds to its digits, other comparisons allow for float noise alone. Arithmetic gives a `Number` again."""

    text: str
    name: str

    def __new__(cls, value: float | str, name: str = "") -> Number:
        made = super().__new__(cls, value)
        made.text, made.name = value if isinstance(value, str) else "", name
        return made

    @property
    def digits(self) -> int:
        """Decimals printed; for ``1e-9`` as many as it takes to write it out."""
        mantissa, _, exponent = self.text.lower().partition("e")
        return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))

    def equals(self, other: float) -> bool:
        """True when one, rounded to the digits printed of the other, is the same; either way at an exact half."""
        printed = [side.digits for side in (self, other) if isinstance(side, Number) and side.text]
        slack = 0.5 * 10 ** -min(printed) if printed else 0  # the side with fewer digits is the rounded one
        return abs(float(self) - float(other)) <= slack + 1e-9 * max(1.0, abs(float(self)))

    __hash__ = float.__hash__


def _compared(holds: Callable, yes: str, no: str) -> Callable:
    def compare(self: Number, other: float) -> Finding:
        found = bool(holds(self, other))
        return Finding(found, f"{spell(self)} {yes if found else no} {spell(other)}")

    return compare


def _rounded(plain: Callable) -> Callable:
    return lambda one, two: plain(round(float(one), 9), round(float(two), 9))


def _computed(plain: Callable) -> Callable:
    return lambda self, *other: Number(plain(float(self), *map(float, other)))


Number.__eq__ = _compared(Number.equals, "=", "≠")
Number.__ne__ = _compared(lambda one, two: not one.equals(two), "≠", "=")
for _name, _yes, _no in (("lt", "<", "≥"), ("le", "≤", ">"), ("gt", ">", "≤"), ("ge", "≥", "<")):
    setattr(Number, f"__{_name}__", _compared(_rounded(getattr(operator, _name)), _yes, _no))
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "neg", "abs"):
    setattr(Number, f"__{_name}__", _computed(getattr(float, f"__{_name}__")))


def is_(left: object, right: object) -> Finding:
    """Equality of two settings or lists, with both sides told."""
    same = left == right
    return same if isinstance(same, Finding) else Finding(same, f"{spell(left)} {'=' if same else '≠'} {spell(right)}")


def spell(value: object) -> str:
    """A number as text: the printed digits, or four significant ones."""
    if isinstance(value, Number) and value.text:
        return f"{value.text} ({value.name})" if value.name else value.text
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(spell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- cells of the paper's tables ----------------------------------------------------------------------------


@cache
def _read(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame["digits"] = frame["value"].str.partition(".")[2].str.len()
    for name in frame.columns.intersection(["value", *PARAMETERS.values()]):
        frame[name] = pd.to_numeric(frame[name].replace("", None)).astype(float)
    return frame


def paper_table(label: str) -> pd.DataFrame:
    """A table of the paper, one row a printed cell: model, method, parameters, task, metric, value, mark, digits."""
    if label not in TABLES:
        raise UserError(f"unknown table {label!r}; the paper has {', '.join(TABLES)}")
    path = home() / "data" / "paper" / f"{label}.csv"
    if not path.is_file():
        raise UserError(f"{path} is missing; get it from the repository or set JOT_HOME to a checkout")
    return _read(path)


def rows(words: str) -> pd.DataFrame:
    """The rows of a table that fit ``"<label> word word ..."``; a word is a model, method, task or metric, a
    parameter (``tau=90``), or ``plain`` for rows without spatial modulation.

    Raises:
        UserError: an unknown word, or no such row.
    """
    label, *rest = words.split()
    frame = paper_table(label)
    for word in rest:
        name, _, value = word.partition("=")
        known = MODELS.get(word, word)
        if value:
            frame = frame[frame[PARAMETERS.get(name, name)] == float(value)]
        elif word == "plain":
            frame = frame[frame["gamma"].isna()]
        else:
            named = frame.columns.intersection(["model", "method", "task", "metric"])
            frame = frame[(frame[named] == known).any(axis=1)]
        if frame.empty:
            raise UserError(f"ledger: {word!r} names no row in {words!r}")
    return frame


def cells(words: str) -> list[Number]:
    """All printed numbers of the rows that fit, in the table's order; dashes are left out."""
    frame = rows(words).dropna(subset="value")
    return [Number(f"{v:.{d}f}") for v, d in zip(frame["value"], frame["digits"], strict=True)]


def cell(words: str) -> Number:
    """The one printed number that fits."""
    found, plain = cells(words), [word for word in words.split()[1:] if "=" not in word]
    if len(found) != 1:
        raise UserError(f"ledger: {len(found)} cells of the paper fit {words!r}; one is needed")
    parameters = [word.replace("=", " ") for word in words.split() if "=" in word]
    return Number(found[0].text, ", ".join([" ".join(plain), *parameters]))  # ``dream jot gsm8k, tau 30``


# --- the ledger ---------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One claim; the fields are those of the file."""

    id: str
    section: str
    claim: str
    kind: str
    criterion: str = ""
    reading: str = ""
    value: Mapping[str, str] = {}
    context: Sequence[str] = ()
    ours: bool = False
    grade: str = ""
    same: str = ""

    @property
    def numbers(self) -> list[str]:
        """All numbers of the prose that this entry covers, as printed."""
        return [*self.value.values(), *self.context]


def load() -> list[Entry]:
    """The entries of the ledger, in the order of the paper.

    Raises:
        UserError: the file is missing, or an entry is not complete; the sentence names it.
    """
    path = home() / "data" / "paper" / "claims.yaml"
    if not path.is_file():
        raise UserError(f"{path} is missing; get it from the repository or set JOT_HOME to a checkout.")
    entries: dict[str, Entry] = {}
    for number, raw in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")) or [], start=1):
        try:
            entry = Entry(**raw)
            entry.claim.format(**entry.value)
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise UserError(f"claims.yaml: entry number {number} is not complete ({error})") from None
        holds = {
            "numbers are in quotes, as their digits count": all(isinstance(n, str) for n in entry.numbers),
            f"its kind is one of {', '.join(KINDS)}": entry.kind in KINDS,
            "its criterion is given for a phenomenon alone": bool(entry.criterion) == (entry.kind == "phenomenon"),
            f"its grade is one of {', '.join(GRADES)}": entry.grade in ("", *GRADES),
            "its id is its own": entry.id not in entries,
        }
        if broken := [rule for rule, kept in holds.items() if not kept]:
            raise UserError(f"claims.yaml: entry {entry.id}: {broken[0]}, which is not so")
        entries[entry.id] = entry
    return list(entries.values())
