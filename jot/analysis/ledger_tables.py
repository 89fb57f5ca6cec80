"""Claims about the paper's tables as wholes: marks of the best, cells printed twice, granularity of percentages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pandas as pd

from jot.analysis import published
from jot.analysis.ledger_cells import SAMPLES, Finding, paper_table, rows

# Columns of a table are compared within these keys; a lower value is better for LOWER.
LOWER = {"rep4"}
BOLD_ONLY = {"composability", "quality"}  # their captions speak of bold alone
KEYS = ("model", "method", "tau_max", "tau_min", "gamma", "window", "task", "metric")
DEFAULTS = {"Dream-7B": 90.0, "LLaDA-8B": 30.0}  # tau_max of rows that say no more than "JoT"
MOST = 2000  # the largest n that implied_n tries: above 1,000 every tenth of a percent can be hit


# --- marks --------------------------------------------------------------------------------------------------


def marks(label: str) -> pd.DataFrame:
    """Every mark of a table that is printed or due, one row each.

    Best and second-best are taken within a column (and a model, where a table has several); equal values share a
    rank. Columns: ``table column value rank mark status tied``; ``tied`` is the number of cells that share the value,
    status "right", "wrong", "missing", or "tied" where a mark is due to several equal cells and none of them has it.
    """
    frame = paper_table(label).dropna(subset="value")
    frame = frame[frame["method"] != "human"] if "method" in frame else frame
    groups = ["task", "metric", "tau_min"] if label == "tau_min_ablation" else ["model", "task", "metric"]
    groups = [g for g in groups if g in frame]
    found = []
    for key, column in frame.groupby(groups, sort=False):
        key = key if isinstance(key, tuple) else (key,)
        ranks = column["value"].rank(method="dense", ascending=key[groups.index("metric")] in LOWER)
        if column["value"].nunique() == 1 or not column["mark"].any():
            continue
        for (_, row), rank in zip(column.iterrows(), ranks, strict=True):
            due = {1: "bold", 2: "underline"}.get(int(rank), "")
            due = "" if due == "underline" and label in BOLD_ONLY else due
            if row["mark"] or due:
                equal = column[column["value"] == row["value"]]
                omitted = "tied" if len(equal) > 1 and not equal["mark"].any() else "missing"
                status = "right" if row["mark"] == due else omitted if due and not row["mark"] else "wrong"
                found.append(
                    {
                        "table": label,
                        "column": " ".join(f"tau_min={k:g}" if isinstance(k, float) else str(k) for k in key),
                        "value": f"{row['value']:.{row['digits']}f}",
                        "rank": int(rank),
                        "mark": row["mark"],
                        "status": status,
                        "tied": len(equal),
                    }
                )
    return pd.DataFrame(found, columns=["table", "column", "value", "rank", "mark", "status", "tied"])


def marks_right(label: str) -> Finding:
    """Bold stands at the best value of a column and underline at the second-best, and nowhere else; values that share
    a rank either all have its mark or, told in the detail, none."""
    frame = marks(label)
    printed, off = frame[frame["mark"] != ""], frame[~frame["status"].isin(["right", "tied"])]
    parts = [
        f"{r.column}: {r.value} is {'best' if r.rank == 1 else 'second' if r.rank == 2 else 'neither'} and "
        f"{f'marked {r.mark}' if r.mark else 'unmarked'}"
        for r in off.itertuples()
    ]
    for (column, value, rank), group in frame[frame["status"] == "tied"].groupby(
        ["column", "value", "rank"], sort=False
    ):
        place = "best" if rank == 1 else "second"
        parts.append(f"{column}: the {place} value {value} stands in {len(group)} cells, none marked")
    right = int((printed["status"] == "right").sum())
    return Finding(off.empty, "; ".join([f"{right} of {len(printed)} printed marks right", *parts]))


# --- cells printed twice ------------------------------------------------------------------------------------


def occurrences(labels: Sequence[str]) -> pd.DataFrame:
    """The cells of several tables with their full configuration, one row each: `KEYS`, value, digits, table."""
    frames = []
    for label in labels:
        frame = paper_table(label).copy().dropna(subset="value")
        frame = frame.reindex(columns=[*KEYS, "value", "digits"]).assign(table=label)
        bare = (frame["method"] == "jot") & frame["tau_max"].isna()  # "JoT (Ours)" stands for the default
        frame["tau_max"] = frame["tau_max"].where(~bare, frame["model"].map(DEFAULTS)).astype(float)
        spatial = (frame["method"] == "jot") & (bare | frame["gamma"].notna())
        for name, value in (("tau_min", 1.0), ("gamma", 0.5), ("window", 8.0)):
            frame[name] = frame[name].where(~(spatial & frame[name].isna()), value).astype(float)
        if label == "composability":  # the rows of JoT run inside the cache there
            frame.loc[frame["method"] == "jot", "method"] = "jot in the cache"
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def agree(*labels: str) -> Finding:
    """A configuration that is printed in several of the tables has the same numbers in all of them."""
    parts, shared = [], 0
    for key, group in occurrences(labels).groupby(list(KEYS), dropna=False, sort=False):
        if group["table"].nunique() < 2:
            continue
        shared += 1
        if group["value"].nunique() > 1:
            at = dict(zip(KEYS, key, strict=True))
            named = ", ".join(
                f"{n.removesuffix('_max')} {at[n]:g}" for n in ("tau_max", "gamma", "window") if not pd.isna(at[n])
            )
            where = " and ".join(f"{r.value:.{r.digits}f} in {r.table}" for r in group.itertuples())
            parts.append(f"{at['model']} {at['task']} {at['metric']} ({named or at['method']}): {where}")
    return Finding(not parts, "; ".join([*parts, f"{shared - len(parts)} of {shared} shared cells agree"]))


# --- granularity --------------------------------------------------------------------------------------------


def possible(value: float, digits: int, n: int) -> bool:
    """True when some k of ``n`` gives this percentage at the digits printed."""
    slack = 0.5 * 10**-digits + 1e-9
    return math.ceil((value - slack) * n / 100 - 1e-9) <= math.floor((value + slack) * n / 100 + 1e-9)


def implied_n(values: Sequence[float], digits: int = 1, most: int = MOST) -> int | None:
    """The smallest n for which every value is k of n in percent, rounded to ``digits``; None up to ``most``."""
    return next((n for n in range(1, most + 1) if all(possible(v, digits, n) for v in values)), None)


def granularity(label: str) -> pd.DataFrame:
    """Smallest n per column of scores: ``table column distinct implied stated impossible``.

    ``stated`` is the n that the paper gives for the benchmark, empty where it gives none; ``impossible`` lists the
    values that no k of that n rounds to. A subset of unknown size is compared with the whole set too.
    """
    frame = paper_table(label)
    frame = frame[frame["metric"] == "score"].dropna(subset="value")
    if label == "llada_ablation":  # its first row repeats the main table
        frame = frame[frame["method"] != "full"]
    keys = ["task", "tau_min"] if label == "tau_min_ablation" else ["model", "task"]
    found = []
    for key, column in frame.groupby(keys, sort=False):
        task = dict(zip(keys, key, strict=True))["task"]
        values = sorted(set(column["value"]))
        n = SAMPLES.get(task)
        wrong = [f"{v:.1f}" for v in values if n and not possible(v, 1, n)]
        found.append(
            {
                "table": label,
                "column": " ".join(f"tau_min={k:g}" if isinstance(k, float) else str(k) for k in key),
                "distinct": len(values),
                "implied": implied_n(values),
                "stated": n,
                "impossible": ", ".join(wrong),
            }
        )
    return pd.DataFrame(found)


def granular(words: str, n: float) -> Finding:
    """Every score that fits is a whole number of ``n`` documents."""
    frame = rows(words + " score").dropna(subset="value")
    wrong = sorted({v for v, d in zip(frame["value"], frame["digits"], strict=True) if not possible(v, d, int(n))})
    smallest = implied_n(sorted(set(frame["value"])))
    return Finding(
        not wrong,
        f"{len(frame) - frame['value'].isin(wrong).sum()} of {len(frame)} scores are k of {n:g}"
        + (f"; impossible: {', '.join(f'{v:.1f}' for v in wrong)}" if wrong else "")
        + f"; smallest n that gives all of them: {smallest or f'none up to {MOST}'}",
    )


def counts(n: float, *percent: float) -> Finding:
    """Every percentage is a whole number of ``n`` documents."""
    wrong = [p for p in percent if not possible(p, getattr(p, "digits", 1), int(n))]
    listed = ", ".join(f"{p:g} % = {round(p * n / 100)}" for p in percent if p not in wrong)
    return Finding(not wrong, f"of {n:g}: {listed}" + "".join(f"; {p:g} % is no whole number" for p in wrong))


def one_subset(task: str) -> Finding:
    """The two halves of the tau_min table can be percentages of one subset of some size up to the whole set."""
    values = sorted(set(rows(f"tau_min_ablation {task} score")["value"]))
    halves = [implied_n(sorted(set(rows(f"tau_min_ablation {task} tau_min={t} score")["value"]))) for t in (1, 30)]
    found = implied_n(values, most=SAMPLES[task])
    return Finding(
        found is not None,
        f"smallest n: {halves[0]} for tau_min 1, {halves[1]} for tau_min 30, "
        f"{found or f'none up to {SAMPLES[task]}'} for both",
    )


def subset_possible(words: str, whole: int) -> Finding:
    """The scores that fit are percentages of one subset, of any size up to the ``whole`` set."""
    values = sorted(set(rows(words + " score")["value"].dropna()))
    smallest = implied_n(values)
    return Finding(
        implied_n(values, most=int(whole)) is not None,
        f"smallest n that gives {', '.join(f'{v:.1f}' for v in values)}: {smallest or f'none up to {MOST}'}; "
        f"the whole set has {whole:g}",
    )


def own_baseline() -> Finding:
    """The full-decoding row of LLaDA's ablation is measured on its subset, not repeated from the main table."""
    ours, main = (rows(f"{t} full score").query("model == 'LLaDA-8B'") for t in ("llada_ablation", "main_results"))
    same = [f"{a:.1f}" for a, b in zip(ours["value"], main["value"], strict=True) if a == b]
    return Finding(len(same) < len(ours), f"{len(same)} of {len(ours)} scores equal the whole set's: {', '.join(same)}")


# --- rows of a table against each other ---------------------------------------------------------------------


def _floors(task: str, metric: str) -> list[tuple[float, float]]:
    """Values with tau_min 1 and with 30, for each decay rate and window."""
    low, high = (rows(f"tau_min_ablation {task} {metric} tau_min={t}")["value"] for t in (1, 30))
    return list(zip(low, high, strict=True))


def largest_floor_difference(task: str) -> float:
    """The largest difference of two scores that differ in tau_min alone, in points."""
    return max(abs(a - b) for a, b in _floors(task, "score"))


def floors_within(task: str, points: float) -> Finding:
    """Scores that differ in tau_min alone are at most ``points`` apart, as printed."""
    differences = [b - a for a, b in _floors(task, "score")]
    beyond = [d for d in differences if round(abs(d), 6) > points]
    listed = ", ".join(f"{d:+.1f}" for d in differences)
    return Finding(not beyond, f"tau_min 30 minus 1: {listed}; {len(beyond)} of {len(differences)} beyond {points:g}")


def floors_slower(task: str, percent: float) -> Finding:
    """With tau_min 30 every speedup is smaller, by less than ``percent``."""
    changes = [100 * (b / a - 1) for a, b in _floors(task, "speedup")]
    return Finding(
        all(-percent < c < 0 for c in changes), "tau_min 30 over 1: " + ", ".join(f"{c:+.1f} %" for c in changes)
    )


def flat(words: str, within: float) -> Finding:
    """The scores that fit span at most ``within`` points."""
    values = rows(words + " score")["value"].dropna()
    return Finding(
        values.max() - values.min() <= within + 1e-9,
        f"from {values.min():.1f} to {values.max():.1f} over {len(values)} scores",
    )


def monotone(words: str, metric: str, rising: bool) -> Finding:
    """Over rising tau_max the values that fit rise (or fall) without exception."""
    frame = rows(f"{words} {metric}").dropna(subset=["value", "tau_max"]).sort_values("tau_max")
    steps = [b - a for a, b in itertools.pairwise(frame["value"])]
    listed = ", ".join(
        f"{v:.{d}f} at {t:g}" for v, d, t in zip(frame["value"], frame["digits"], frame["tau_max"], strict=True)
    )
    return Finding(all(s > 0 if rising else s < 0 for s in steps), listed)


FUNCTIONS = {
    f.__name__: f
    for f in (
        marks_right,
        agree,
        granular,
        counts,
        one_subset,
        subset_possible,
        own_baseline,
        largest_floor_difference,
        floors_within,
        floors_slower,
        flat,
        monotone,
    )
}
TABLES_WITH_MARKS = tuple(label for label in published.TABLES if label != "config")
TABLES_WITH_SCORES = tuple(label for label in published.TABLES if label not in ("config", "quality", "wallclock"))
