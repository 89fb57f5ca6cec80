"""What a notebook prints: captioned tables and notes that read well as HTML, in a code host's view, and as text; values
with their intervals; and the names and words that every caption shares."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

import pandas as pd

from jot import stats

ZERO = 1e-9  # below it a number is the 0 of an exact limit, left by floating point
MORE = 2  # decimals that may be added

WILSON = "Wilson 95 % interval"
TANGO = "Tango 95 % score interval"
BOOT = f"95 % percentile bootstrap over documents, {stats.N_BOOT:,} resamples shared across methods"
# n of the plan.
PLANNED = {"pocket_gsm8k": 2000, "pocket_mmlu": 2000, "pocket_hellaswag": 2000, "pocket_humaneval": 1000}
# How a notebook's `methods` are called, in the order of a table's rows; the last three are variants of baselines.
LABELS = {
    "full": "Full decoding",
    "prophet": "Prophet (our port)",
    "klass": "KLASS",
    "fastdllm": "Fast-dLLM",
    "jot": "JoT (default)",
    "calibrated": "JoT (calibrated)",
    "eb": "Entropy budget (EB-Sampler)",
    "localleap": "LocalLeap",
    "credit": "CreditDecoding",
    "sched": "SchED",
    "sched-bar": "SchED (no guard)",
    "prophet-answer": "Prophet (official answer region)",
    "klass-ported": "KLASS (ported)",
    "fastdllm-nocache": "Fast-dLLM, no cache (ours)",
}

# --- tables and notes ---------------------------------------------------------------------------------------


@dataclass(repr=False)
class Table:
    """A captioned table of text cells that reads well as HTML (plain tags, which code hosts keep) and as text.

    In a cell ``**x**`` is bold, ``__x__`` underlined, and what follows a newline is set smaller below.
    Columns may have two levels; the index is not shown.

    Args:
        whole: a longer table of which ``frame`` is the telling part; it follows as a collapsed block.
    """

    frame: pd.DataFrame
    caption: str
    whole: pd.DataFrame | None = None

    def __repr__(self) -> str:
        flat = self.frame.replace("\n", " ", regex=True)
        if flat.columns.nlevels > 1:
            flat.columns = [" ".join(filter(None, c)) for c in flat.columns]
        return self.caption + "\n\n" + flat.to_string(index=False)

    def _repr_html_(self) -> str:
        page = f"<p>{escape(self.caption)}</p>\n{_html(self.frame)}"
        if self.whole is None:
            return page
        return f"{page}\n<details><summary>All {len(self.whole)} rows</summary>{_html(self.whole)}</details>"


@dataclass(repr=False)
class Note:
    """A paragraph in Markdown, such as a verdict, that also reads as text."""

    text: str

    def __repr__(self) -> str:
        return self.text.replace("**", "")

    def _repr_markdown_(self) -> str:
        return self.text


table, note = Table, Note  # as cells call them


def _html(frame: pd.DataFrame) -> str:
    columns = frame.columns
    levels = [columns] if columns.nlevels == 1 else [columns.get_level_values(i) for i in range(columns.nlevels)]
    head = "".join(f"<tr>{_header(level)}</tr>" for level in levels)
    rows = ("".join(f"<td>{_inline(value)}</td>" for value in row) for row in frame.itertuples(index=False, name=None))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _header(names: Iterable[str]) -> str:
    """Neighbors of one name share a cell."""
    spans = (list(same) for _, same in itertools.groupby(enumerate(names), key=lambda at: at[1] or at[0]))
    return "".join(f'<th colspan="{len(span)}">{escape(str(span[0][1]))}</th>' for span in spans)


def _inline(value: object) -> str:
    first, *rest = escape(str(value)).split("\n")
    first = re.sub(r"(?<=\w)-(?=\w)", "\u2011", first).replace("τ = ", "τ\u00a0=\u00a0")  # keep names on one line
    for mark, tag in (("**", "b"), ("__", "ins")):
        if first.startswith(mark) and first.endswith(mark) and len(first) > 4:
            first = f"<{tag}>{first[2:-2]}</{tag}>"
    return first + "".join(f"<br><sub>{line}</sub>" for line in rest)


# --- values -------------------------------------------------------------------------------------------------


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


def pvalue(p: float) -> str:
    """``0.031``, ``2.1e-05``; nothing for a missing one."""
    return "" if pd.isna(p) else f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def points(row: Mapping, prefix: str = "") -> str:
    """``+5.6\\n[+3.7, +7.5]``: a row's difference with its limits ``low`` and ``high``, in points."""
    value, low, high = (row.get(f"{prefix}{name}") for name in ("difference", "low", "high"))
    return "" if value is None or pd.isna(value) else interval(value, low, high, sign="+")


# --- captions -----------------------------------------------------------------------------------------------


def tier(model: str) -> str:
    """Which tier of evidence a model belongs to; every caption says so."""
    if model == "smol-dream":
        return "pretrained tier, 135 M parameters"
    size = re.search(r"-(\d+)m$", model)
    millions = "1.2" if model.startswith("pocket-long-") else size[1] if size else "5"
    return f"embedded tier, {millions} M parameters" if model.startswith("pocket-") else "full-size tier"


def tiers(models: Iterable[str]) -> str:
    """The tiers of several models, each once, in their order."""
    return " and ".join(dict.fromkeys(map(tier, models)))


def counts(frame: pd.DataFrame) -> str:
    """``n = 2,000 pocket_gsm8k, 1,000 pocket_humaneval``, from the columns task and n; a range where models differ."""
    parts = []
    for task, group in frame.groupby("task", sort=False, observed=True):
        low, high = group["n"].min(), group["n"].max()
        parts.append((f"{low:,}" if low == high else f"{low:,} to {high:,}") + f" {task}")
    return "n = " + ", ".join(parts)


def scope(frame: pd.DataFrame) -> str:
    """Tier and n of a frame with the columns model, task and n, for its caption."""
    shown = tiers(frame["model"])
    return f"{shown[:1].upper()}{shown[1:]}; {counts(frame)}"
