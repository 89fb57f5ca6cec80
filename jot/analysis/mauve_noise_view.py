"""How far MAUVE's intervals can be trusted, as a table: full decoding against itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from jot import stats
from jot.analysis import quality, render
from jot.analysis.continuations import NOISE, Texts
from jot.analysis.quality_view import interval, p_value, tiers
from jot.analysis.spelling import number, of
from jot.paper.show import Note, Table


def table(sets: Sequence[Texts], frame: pd.DataFrame, tests: pd.DataFrame) -> Table | Note:
    """How the interval and the label swap do where nothing differs."""
    if frame.empty:
        return Note("Full decoding is recorded under one seed: how MAUVE's interval does without a difference is open.")
    rows = []
    for row in frame.to_dict("records"):
        test = _test(tests, row["model"], row["encoder"], row["n"], NOISE)
        gap = {"gap": test["difference"], "gap_low": test["low"], "gap_high": test["high"]}
        parts = row["parts"] > 1
        rows.append(
            {
                "Model": row["model"],
                "Encoder": row["encoder"],
                "n": f"{row['n']:,}",
                "Next seed − seed, first prompts": interval(gap, "gap", 4, "+"),
                "p (label swap)": p_value(test),
                "Interval holds 0": "yes" if _holds(test) else "**no**",
                "Intervals that hold 0 over alike sides, %": of(row, "coverage"),
                "95 % of their differences within ±": number(row["spread"], 4),
                "Disjoint parts with 0 inside": f"{row['parts_held']} of {row['parts']}" if parts else "",
                f"Parts with p above {stats.ALPHA:g}": f"{row['parts_kept']} of {row['parts']}" if parts else "",
            }
        )
    caption = (
        f"MAUVE where nothing differs: full decoding against itself under the next seed. {tiers(sets)}. On the first "
        "prompts of the fixed order; over "
        f"{int(frame['trials'].max())} comparisons of alike sides, each of n random prompts with the seeds' texts "
        f"swapped at random ({render.WILSON}; a calibrated interval gives 95); and over the disjoint parts of n "
        f"prompts. {trust(frame, tests)}"
    )
    return Table(pd.DataFrame(rows), caption)


def trust(frame: pd.DataFrame, tests: pd.DataFrame) -> str:
    """What the noise allows to be read from an interval at the paper's n, in words."""
    if frame.empty:
        return ""
    small, level = frame[frame["n"] == quality.SMALL], 100 * (1 - stats.ALPHA)
    words = []
    missed = [row | {"p": test["p"]} for row in small.to_dict("records")
              if not _holds(test := _test(tests, row["model"], row["encoder"], row["n"], NOISE))]  # fmt: skip
    if missed:
        told = "; ".join(f"{row['model']}, {row['encoder']}, label swap p = {row['p']:.3f}" for row in missed)
        words.append(
            f"At n = {quality.SMALL} the interval of this comparison, in which no method differs, leaves 0 out "
            f"({told}): one interval at that n is no sign of a difference, and no verdict rests on one."
        )
        fair = all(row["coverage_high"] >= level for row in missed)
        words.append(
            "Over alike sides the intervals of these rows hold 0 as often as they should, so the draw of those texts "
            "is to blame and not the interval." if fair else "Over alike sides these intervals are too narrow."
        )  # fmt: skip
    narrow = frame[frame["coverage_high"] < level]
    if len(narrow):
        told = "; ".join(f"{m}, {e}, n = {n:,}" for m, e, n in narrow[list(quality.KEYS)].itertuples(index=False))
        words.append(f"Too narrow over alike sides: {told}.")
    parts, kept = int(small["parts"].sum()), int(small["parts_kept"].sum())
    if parts > len(small):
        words.append(
            f"Of the {parts} label swaps over disjoint parts {parts - kept} have p of at most {stats.ALPHA:g}; about "
            f"{stats.ALPHA * parts:.1f} would by chance."
        )
    return " ".join(words)


def _test(tests: pd.DataFrame, model: str, encoder: str, n: int, pair: str) -> pd.Series:
    at = (tests["model"] == model) & (tests["encoder"] == encoder) & (tests["n"] == n) & (tests["pair"] == pair)
    return tests[at].iloc[0]


def _holds(test: Mapping) -> bool:
    return bool(test["low"] <= 0 <= test["high"])
