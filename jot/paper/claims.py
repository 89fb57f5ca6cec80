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

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml

from jot import stats
from jot.errors import UserError
from jot.models import home
from jot.paper import criteria

TABLES = ("main_results", "threshold_ablation", "sweep", "config", "wallclock", "tau_min_ablation", "quality",
          "llada_ablation", "composability", "spatial_ablation")  # fmt: skip
MODELS = {"dream": "Dream-7B", "llada": "LLaDA-8B"}
PARAMETERS = {"tau": "tau_max", "tau_min": "tau_min", "gamma": "gamma", "window": "window"}
SAMPLES = {"gsm8k": 1319, "humaneval": 164}  # the caption of the paper's main table
TASKS = ("gsm8k", "mmlu", "hellaswag", "humaneval")
KINDS = {
    "arithmetic": "a number that follows from the paper's other numbers",
    "comparison": "an ordering or a statement about the paper's own tables",
    "setting": "a configuration that the paper states, against what this package uses",
    "phenomenon": "an effect, looked for in the embedded models' recorded runs",
    "full-size": "a measurement that nothing here can repeat without the 7B and 8B weights",
}
VERDICTS = ("fails", "not seen", "undecided", "not shown", "needs the full-size weights", "seen", "holds")
GRADES = ("contradicts its own table", "depends on the reading", "transcription")
MINOR = 10  # percent; how the ledger reads a "minor" or "small" overhead, said in the entries

# --- numbers and findings -----------------------------------------------------------------------------------


class Finding:
    """Whether a claim holds, and the numbers that say so."""

    def __init__(self, holds: bool, detail: str) -> None:
        self.holds, self.detail = bool(holds), detail

    def __bool__(self) -> bool:
        return self.holds

    def __radd__(self, other: int) -> int:
        """So that ``sum`` counts."""
        return other + self.holds

    def __rand__(self, other: bool) -> bool:
        return other and self.holds


def every(*parts: Finding) -> Finding:
    """All parts hold; where some do not, only those are told."""
    broken = [part for part in parts if not part]
    return Finding(not broken, "; ".join(part.detail for part in broken or parts))


class Number(float):
    """A number, as the paper prints it where ``text`` is given: its digits say how it was rounded, ``name`` what it is
    the number of. Comparisons give a `Finding` with both sides; ``==`` with a printed number holds when the other side
    rounds to its digits, other comparisons allow for float noise alone."""

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

    def fits(self, value: float) -> bool:
        """True when ``value``, rounded to the digits printed, is this number; either way at an exact half."""
        return abs(float(value) - float(self)) <= 0.5 * 10**-self.digits + 1e-9 * max(1.0, abs(float(self)))

    def _equal(self, other) -> bool:
        printed = [side for side in (self, other) if isinstance(side, Number) and side.text]
        if printed:  # the side with fewer digits is the rounded one
            coarse = min(printed, key=lambda side: side.digits)
            return coarse.fits(other if coarse is self else self)
        return abs(float(self) - float(other)) <= 1e-9 * max(1.0, abs(float(self)))

    def _said(self, holds: bool, yes: str, no: str, other) -> Finding:
        return Finding(holds, f"{spell(self)} {yes if holds else no} {spell(other)}")

    def __eq__(self, other):
        return self._said(self._equal(other), "=", "≠", other)

    def __ne__(self, other):
        return self._said(not self._equal(other), "≠", "=", other)

    __hash__ = float.__hash__

    def _ordered(plain: Callable, yes: str, no: str):  # noqa: N805  a factory of the four orderings
        def compare(self, other):
            return self._said(plain(round(float(self), 9), round(float(other), 9)), yes, no, other)

        return compare

    __lt__, __le__ = _ordered(operator.lt, "<", "≥"), _ordered(operator.le, "≤", ">")
    __gt__, __ge__ = _ordered(operator.gt, ">", "≤"), _ordered(operator.ge, "≥", "<")

    def _arithmetic(plain: Callable, turned: bool = False):  # noqa: N805
        def compute(self, other):
            return Number(plain(float(other), float(self)) if turned else plain(float(self), float(other)))

        return compute

    __add__, __radd__ = _arithmetic(operator.add), _arithmetic(operator.add, True)
    __sub__, __rsub__ = _arithmetic(operator.sub), _arithmetic(operator.sub, True)
    __mul__, __rmul__ = _arithmetic(operator.mul), _arithmetic(operator.mul, True)
    __truediv__, __rtruediv__ = _arithmetic(operator.truediv), _arithmetic(operator.truediv, True)

    def __neg__(self) -> Number:
        return Number(-float(self))

    def __abs__(self) -> Number:
        return Number(abs(float(self)))


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


def span(values: Sequence[float], spec: str) -> str:
    """``low to high``, or the one value."""
    low, high = format(min(values), spec), format(max(values), spec)
    return low if low == high else f"{low} to {high}"


# --- cells of the paper's tables ----------------------------------------------------------------------------


@cache
def _read(folder: str, label: str) -> pd.DataFrame:
    if label not in TABLES:
        raise UserError(f"unknown table {label!r}; the paper has {', '.join(TABLES)}")
    path = home() / "data" / "paper" / f"{label}.csv"
    if not path.is_file():
        raise UserError(f"{path} is missing; get it from the repository or set JOT_HOME to a checkout")
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame["digits"] = frame["value"].str.partition(".")[2].str.len()
    for name in ("value", "tau_max", "tau_min", "gamma", "window"):
        if name in frame:
            frame[name] = pd.to_numeric(frame[name].replace("", None)).astype(float)
    return frame


def paper_table(label: str) -> pd.DataFrame:
    """A table of the paper, one row a printed cell: model, method, parameters, task, metric, value, mark, digits."""
    return _read(str(home()), label)


def rows(words: str) -> pd.DataFrame:
    """The rows of a table that fit ``"<label> word word ..."``; a word is a model, method, task or metric, a
    parameter (``tau=90``), or ``plain`` for rows without spatial modulation.

    Raises:
        UserError: an unknown word, or no such row.
    """
    return _rows(str(home()), words)


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


def _texts(frame: pd.DataFrame) -> list[Number]:
    return [Number(f"{v:.{d}f}") for v, d in zip(frame["value"], frame["digits"], strict=True) if not math.isnan(v)]


def _name(words: str) -> str:
    """Words without the table's label and the parameter names that say nothing: ``dream jot gsm8k, tau 30``."""
    plain = [w for w in words.split()[1:] if "=" not in w]
    return ", ".join([" ".join(plain), *(w.replace("=", " ") for w in words.split() if "=" in w)])


def cells(words: str) -> list[Number]:
    """All printed numbers of the rows that fit, in the table's order; dashes are left out."""
    return _texts(rows(words))


def cell(words: str) -> Number:
    """The one printed number that fits."""
    found = cells(words)
    if len(found) != 1:
        raise UserError(f"ledger: {len(found)} cells of the paper fit {words!r}; one is needed")
    return Number(found[0].text, _name(words))


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
        found.append(Number(round(row["value"] - same["value"].iloc[0], 6)))
    return found


def gap(words: str) -> Number:
    """The one gap that fits, to a tenth of a point as the scores are printed."""
    found = gaps(words)
    if len(found) != 1:
        raise UserError(f"ledger: {len(found)} scores of the paper fit {words!r}; one is needed")
    return Number(f"{found[0]:+.1f}", _name(words) + " minus full")


def speed_mean(words: str) -> float:
    """Geometric mean over the four benchmarks of a method's step speedups in the main table."""
    return Number(stats.geometric_mean(cells(f"main_results {words} speedup")))


def kept(words: str) -> float:
    """Mean over the four benchmarks of a method's score ratio to full decoding, in percent."""
    model = words.split()[0]
    return Number(stats.retention(cells(f"main_results {words} score"), cells(f"main_results {model} full score")))


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
    value = found[name]
    return Number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


# --- what several claims share ------------------------------------------------------------------------------


def budget(length: float, tau: float) -> float:
    """The paper's reversal budget: ``2 L / (1 + tau)`` positions a sample."""
    return Number(2 * float(length) / (1 + float(tau)))


def errors(words: str) -> list[float]:
    """Binomial standard errors, in points, of the scores of the main table that fit, at the stated n."""
    frame = rows(f"main_results {words} score")
    return [
        Number(stats.standard_error_points(v / 100, SAMPLES[t]))
        for v, t in zip(frame["value"], frame["task"], strict=True)
    ]


def errors_print(low: float, high: float, words: str) -> Finding:
    """Every standard error of the rows that fit rounds to a number from ``low`` to ``high``."""
    found = [round(float(e), 1) for e in errors(words)]
    return Finding(
        all(low <= e <= high for e in found),
        f"standard errors from {min(found):.1f} to {max(found):.1f} over {len(found)} scores",
    )


def lost(words: str) -> list[float]:
    """Share of the step speedup that the clock does not give back, in percent, per benchmark (`TASKS`); of the
    short benchmarks alone with ``short`` as last word."""
    words, short = words.removesuffix(" short"), words.endswith(" short")
    steps, clock = cells(f"main_results {words} speedup"), cells(f"wallclock {words} wallclock_speedup")
    found = [Number(100 * (1 - float(c) / float(s))) for s, c in zip(steps, clock, strict=True)]
    return found[1:3] if short else found


def overhead(base: str) -> Finding:
    """JoT's time beyond its forwards is under `MINOR` percent, on every benchmark: of a step of full decoding
    (``"step"``), or of the time that it saves (``"savings"``)."""
    found = {}
    for name in MODELS:
        for task, rate in zip(TASKS, lost(f"{name} jot"), strict=True):
            clock = cell(f"wallclock {name} jot {task} wallclock_speedup")
            steps = clock / (1 - rate / 100)
            extra = 1 / clock - 1 / steps  # both in units of full decoding's time
            found[f"{MODELS[name]} {task}"] = 100 * (extra * steps if base == "step" else extra / (1 - 1 / clock))
    large = {k: v for k, v in found.items() if v >= MINOR}
    listed = ", ".join(f"{k} {v:.1f} %" for k, v in (large or found).items())
    return Finding(not large, f"{len(large)} of {len(found)} at {MINOR} % or more: {listed}")


def frontier(words: str) -> Finding:
    """No method of the main table beats this one in both the aggregate speedup and the score retained."""
    model, method = words.split()
    names = [m for m in dict.fromkeys(rows(f"main_results {model}")["method"]) if m != "full"]
    at = {name: (speed_mean(f"{model} {name}"), kept(f"{model} {name}")) for name in names}
    over = [n for n in names if n != method and at[n][0] >= at[method][0] and at[n][1] >= at[method][1]]
    under = [n for n in names if n != method and at[n][0] <= at[method][0] and at[n][1] <= at[method][1]]
    detail = "; ".join(f"{n} {s:.2f}x at {k:.1f} %" for n, (s, k) in at.items())
    return Finding(not over, f"{detail}; {method} dominates {', '.join(under) or 'none'}")


def mcnemar(b: float, c: float) -> float:
    """Exact two-sided McNemar p of ``b`` repairs and ``c`` breaks."""
    return Number(stats.mcnemar_exact(round(b), round(c)))


def discordant(agreement: float, difference: float, n: float) -> list[int]:
    """Repairs and breaks ``[b, c]`` of ``n`` documents with that agreement (percent) and difference (points)."""
    total, net = round(n * (1 - agreement / 100)), round(n * difference / 100)
    return [(total + net) // 2, (total - net) // 2]


def apart(worse: float, better: float, n: float) -> Finding:
    """The Wilson 95 % intervals of two error rates (percent of ``n`` documents each) do not overlap."""
    a, b = (stats.wilson(round(p * n / 100), int(n)) for p in (worse, better))
    return Finding(
        a.low > b.high,
        f"[{100 * a.low:.1f}, {100 * a.high:.1f}] and [{100 * b.low:.1f}, {100 * b.high:.1f}] %, n = {n:g} each",
    )


def raw_ratio(threshold: float, temperature: float) -> float:
    """The untempered top-2 ratio at which a two-way choice reaches ``threshold`` after ``temperature``."""
    return Number((float(threshold) / (1 - float(threshold))) ** float(temperature))


def shorter_than_windows(length: float) -> Finding:
    """A generation is shorter than every window radius of the spatial ablation."""
    windows = sorted(set(rows("spatial_ablation")["window"].dropna()))
    return Finding(
        all(length < w for w in windows), f"length {length:g}, windows {', '.join(f'{w:g}' for w in windows)}"
    )


def windows_coincide(task: str) -> Finding:
    """Rows of the spatial ablation that differ in the window alone print the same score and speedup."""
    frame = rows(f"spatial_ablation {task}").dropna(subset="window")
    parts = []
    for (gamma, metric), group in frame.groupby(["gamma", "metric"]):
        if len(group) > 1 and group["value"].nunique() > 1:
            listed = ", ".join(f"{v:g} at D = {w:g}" for v, w in zip(group["value"], group["window"], strict=True))
            parts.append(f"{metric} at gamma {gamma:g}: {listed}")
    return Finding(not parts, "; ".join(parts) or "equal at every decay rate with several windows")


def columns_of(metric: str, *labels: str) -> Finding:
    """Tables have a column of that metric."""
    known = {label: list(dict.fromkeys(paper_table(label)["metric"])) for label in labels}
    without = [label for label, columns in known.items() if metric not in columns]
    return Finding(
        not without,
        "; ".join(f"the columns of {label} are {', '.join(known[label])}" for label in without)
        or f"all of {', '.join(labels)} have it",
    )


LOWER = {"rep4"}  # columns of a table are compared within their keys; a lower value is better for these
BOLD_ONLY = {"composability", "quality"}  # their captions speak of bold alone
KEYS = ("model", "method", "tau_max", "tau_min", "gamma", "window", "task", "metric")
DEFAULTS = {"Dream-7B": 90.0, "LLaDA-8B": 30.0}  # tau_max of rows that say no more than "JoT"
MOST = 2000  # the largest n that implied_n tries: above 1,000 every tenth of a percent can be hit


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


def floors(task: str, metric: str) -> list[tuple[float, float]]:
    """Values with tau_min 1 and with 30, for each decay rate and window."""
    low, high = (rows(f"tau_min_ablation {task} {metric} tau_min={t}")["value"] for t in (1, 30))
    return list(zip(low, high, strict=True))


def floors_slower(task: str, percent: float) -> Finding:
    """With tau_min 30 every speedup is smaller, by less than ``percent``."""
    changes = [100 * (b / a - 1) for a, b in floors(task, "speedup")]
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
    entries = []
    for number, raw in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")) or [], start=1):
        name = raw.get("id", f"number {number}") if isinstance(raw, Mapping) else f"number {number}"
        try:
            entry = Entry(**raw)
            entry.claim.format(**entry.value)
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise UserError(f"claims.yaml: entry {name} is not complete ({error})") from None
        if wrong := [n for n in entry.numbers if not isinstance(n, str)]:
            raise UserError(f"claims.yaml: entry {name}: put quotes around {wrong[0]!r}, its digits count")
        if entry.kind not in KINDS or bool(entry.criterion) != (entry.kind == "phenomenon"):
            raise UserError(f"claims.yaml: entry {name}: its kind is unknown, or does not go with its criterion")
        if entry.grade and entry.grade not in GRADES:
            raise UserError(f"claims.yaml: entry {name} has grade {entry.grade!r}; known are {', '.join(GRADES)}")
        entries.append(entry)
    if twice := [name for name, group in itertools.groupby(sorted(e.id for e in entries)) if len(list(group)) > 1]:
        raise UserError(f"claims.yaml: two entries have the id {twice[0]}")
    return entries


def judge(
    entries: Iterable[Entry], checks: Mapping[str, Callable[..., Finding]], seen: Mapping[str, criteria.Judged]
) -> pd.DataFrame:
    """Every entry with its verdict, in order: ``id section kind claim reading ours grade criterion status detail``.

    Args:
        checks: by entry, a function of its printed numbers.
        seen: by criterion of the plan, status and numbers.
    """
    rows = []
    for entry in entries:
        status, detail = "needs the full-size weights", ""
        if entry.kind == "phenomenon":
            status, detail = seen.get(entry.criterion, ("not shown", "no records"))
        elif entry.kind != "full-size":
            found = checks[entry.id](**{name: Number(text) for name, text in entry.value.items()})
            status, detail = "holds" if found else "fails", getattr(found, "detail", "")
        rows.append({"id": entry.id, "section": entry.section, "kind": entry.kind, "reading": entry.reading,
                     "claim": entry.claim.format(**entry.value), "ours": entry.ours, "grade": entry.grade,
                     "same": entry.same, "criterion": entry.criterion, "status": status, "detail": detail})  # fmt: skip
    return pd.DataFrame(rows)
