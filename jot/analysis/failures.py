"""Where JoT errs and full decoding does not, and the reverse: outcomes, agreement, fifths, first differences."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import cells, draws, sources, spelling, tables
from jot.analysis.cells import Cell, Records
from jot.paper import modes as failure_modes
from jot.paper.criteria import NOT_SHOWN, Judged, judged
from jot.records import natural, pair
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError, home

PAPER_N = 500  # documents of the paper's failure analysis
TRACED = 500  # documents of the traced runs


class Runs(NamedTuple):
    """What the notebook compares.

    Attributes:
        full, jot: full decoding; JoT by ``tau_max``, the default first; missing ones are left out.
        others: further cells by name: other methods, full decoding under other seeds.
        traced: the traced twins, "full" and by ``tau_max``; empty where none is recorded.
        docs: documents by id.
    """

    model: str
    task: str
    full: Cell
    jot: dict[float, Cell]
    others: dict[str, Cell]
    traced: dict[str | float, Cell]
    docs: dict[str, dict]


# --- loading ------------------------------------------------------------------------------------------------


def taus(p: SimpleNamespace) -> tuple[float, float]:
    """The threshold asked for and an aggressive one, a third of it: 90 and 30 as in the paper, or 30 and 10."""
    return p.tau_max, p.tau_max / 3


def point(p: SimpleNamespace, task: str, tau: float) -> Point:
    settings = {"tau_max": tau, "tau_min": p.tau_min, "gamma": p.gamma, "window": p.window}
    return Point.of(p.model, task, "jot", seed=p.seed, **settings)


def wanted(p: SimpleNamespace, task: str) -> dict[str | float, Point]:
    """Every cell the notebook shows, by name."""
    found: dict[str | float, Point] = {"full": Point.of(p.model, task, "full", seed=p.seed)}
    found |= {tau: point(p, task, tau) for tau in taus(p)}
    found |= {m: Point.of(p.model, task, m, seed=p.seed) for m in p.methods if m not in ("full", "jot")}
    if cells.standard_decoding(cells.family({"model": p.model}), task)["temperature"]:
        found |= {
            f"full, seed {p.seed + s}": Point.of(p.model, task, "full", seed=p.seed + s) for s in cells.NOISE_SEEDS
        }
    for each in found.values():
        cells.resolved(each)  # an unknown method or a setting out of range is refused here
    return found


def traces(p: SimpleNamespace, points: Iterable[Point]) -> Records:
    """The traced runs beside the records, cut to ``limit``; empty where there are none."""
    points = [dataclasses.replace(each, trace=True) for each in points]
    place = p.store or home() / ("results/store" if p.source == "live" else "data/records")
    if p.source != "live" and not (Path(place) / "traces").is_dir():
        return {}
    limit = TRACED if p.limit is None else min(p.limit, TRACED)
    try:
        own = sources.recorded(Path(place) / "traces") if p.source != "live" else {}
        most = max((r.n for r in own.values() if r.meta["config"]["task"] == points[0].task), default=limit)
        return sources.load(SimpleNamespace(**vars(p) | {"store": Path(place) / "traces", "limit": min(limit, most)}),
                            points)  # fmt: skip
    except NotebookError:
        if p.source == "live":
            raise
        return {}


def load(p: SimpleNamespace) -> Runs:
    """Records, traces and documents that the parameters ask for.

    Raises:
        NotebookError: several tasks, one without worked solutions, or no cell of full decoding or of JoT.
    """
    if len(p.tasks) != 1:
        raise NotebookError(f"this notebook takes one task, not {len(p.tasks)}: pass tasks=pocket_gsm8k")
    task = p.tasks[0]
    docs = failure_modes.documents(task, p.data)
    points = wanted(p, task)
    p = SimpleNamespace(**vars(p) | {"models": [p.model], "families": list(cells.DEFAULT_TAU)})
    core = ("full", *taus(p))
    own = traces(p, [points[name] for name in core])
    traced_only = p.source == "live" and p.limit is not None and p.limit <= TRACED  # decode nothing twice
    rest = [each for name, each in points.items() if not (traced_only and name in core)]
    records = {**(own if traced_only else {}), **(sources.load(p, rest) if rest else {})}
    found = {name: cell for name, each in points.items() if (cell := cells.lookup(records, each))}
    jot = {tau: found.pop(tau) for tau in dict.fromkeys(taus(p)) if tau in found}
    full = found.pop("full", None)
    if full is None or not jot:
        missing = "full decoding" if full is None else f"JoT at tau_max={p.tau_max:g}"
        raise NotebookError(
            f"{missing} of {p.model} on {task} with these settings is not recorded; "
            "choose recorded settings or pass source=live"
        )
    traced = {name: cell for name in ("full", *jot) if (cell := cells.lookup(own, points[name]))}
    return Runs(cells.short(p.model), task, full, jot, found, traced, docs)


def cut(cell: Cell, n: int = PAPER_N) -> Cell:
    """A cell's first ``n`` documents of the fixed order."""
    if cell.n <= n:
        return cell
    return Cell(cell.id, sources.first({cell.id: cell.recorded}, n)[cell.id])


# --- outcomes -----------------------------------------------------------------------------------------------


def share(k: int, n: int, name: str) -> dict[str, float]:
    """A share in percent with its Wilson limits, as ``name``, ``name_low``, ``name_high``."""
    if not n:
        return {name: math.nan, f"{name}_low": math.nan, f"{name}_high": math.nan}
    low, high = stats.wilson(k, n)
    return {name: 100 * k / n, f"{name}_low": 100 * low, f"{name}_high": 100 * high}


def compared(runs: Runs) -> dict[str, Cell]:
    """Everything that is paired with full decoding, by label."""
    return {f"JoT, τ = {tau:g}": cell for tau, cell in runs.jot.items()} | runs.others


def outcomes(runs: Runs) -> pd.DataFrame:
    """Each run paired with full decoding, over all documents and over the paper's number of them.

    Columns: run, n, score, b, c, p, midp, difference and limits in points, repairs and breaks in percent with
    Wilson limits, agreement of outcomes, of final answers, and of all tokens, likewise; ``degenerate`` where the run
    is full decoding under another seed and no draw had a choice.
    """
    rows = []
    for name, cell in compared(runs).items():
        for n in dict.fromkeys((cell.n, min(cell.n, PAPER_N))):
            one, full = cut(cell, n), cut(runs.full, n)
            both = pair(one.recorded, full.recorded)
            result = tables.compare(one, full)
            score = tables.score(one)
            same = {
                "outcomes": both["score_a"] == both["score_b"],
                "answers": both["answer_a"].fillna("") == both["answer_b"].fillna(""),
                "tokens": pd.Series(
                    [np.array_equal(a, b) for a, b in zip(both["generated_a"], both["generated_b"], strict=True)]
                ),
            }
            agreement = [share(int(hits.sum()), n, key) for key, hits in same.items()]
            alike = name.startswith("full") and draws.degenerate([full, one], runs.traced.get("full"))
            rows.append({"model": runs.model, "task": runs.task, "run": name, "degenerate": alike, **result,
                         "score": score.value, "score_low": score.low, "score_high": score.high,
                         "speedup": tables.speedup(one).value,
                         **share(result["b"], n, "repairs"), **share(result["c"], n, "breaks"),
                         **{k: v for part in agreement for k, v in part.items()}})  # fmt: skip
    return pd.DataFrame(rows)


# --- fifths -------------------------------------------------------------------------------------------------


def side_by_side(jot: Cell, full: Cell) -> pd.DataFrame:
    """Both cells by document, in the documents' order, with 1 for an error and the achieved speedup."""
    both = pair(jot.recorded, full.recorded)
    both = both.iloc[sorted(range(len(both)), key=lambda i: natural(both["doc_id"][i]))].reset_index(drop=True)
    speedup = both["configured_steps_a"] / both["steps_a"]
    return both.assign(jot_error=1 - both["score_a"], full_error=1 - both["score_b"], speedup=speedup)


def fifths(both: pd.DataFrame, by: str, parts: int = 5) -> pd.DataFrame:
    """Documents in ``parts`` groups of equal size by ascending ``by``, ties by document: errors in each.

    ``tied`` counts a group's documents whose ``by`` is that of a neighboring group too: an edge cuts through a tie.

    Args:
        both: from ``side_by_side``, with the column ``by``.
    """
    rows = []
    order = np.argsort(both[by].to_numpy(), kind="stable")
    groups = np.array_split(order, parts)
    ends = [both[by].to_numpy()[at[[0, -1]]] for at in groups if len(at)]
    shared = [last for (_, last), (first, _) in zip(ends, ends[1:], strict=False) if first == last]
    for number, at in enumerate(groups, 1):
        group, n = both.iloc[at], len(at)
        if not n:
            continue
        b, c = stats.discordant(group["score_a"], group["score_b"])
        low, high = (100 * x for x in stats.tango(b, c, n))
        rows.append({"fifth": number, "n": n, "low": group[by].min(), "high": group[by].max(),
                     "tied": int(group[by].isin(shared).sum()),
                     "steps_low": int(group["steps_a"].min()), "steps_high": int(group["steps_a"].max()),
                     **share(int(group["jot_error"].sum()), n, "jot"),
                     **share(int(group["full_error"].sum()), n, "full"),
                     "difference": 100 * (b - c) / n, "difference_low": low, "difference_high": high,
                     "length": float(group["tokens_non_eos_a"].median())})  # fmt: skip
    return pd.DataFrame(rows)


def trend(both: pd.DataFrame, by: str) -> dict[str, float]:
    """Logistic regression of JoT's errors on ``by`` and the answer's length: odds ratio of ``by``, Wald limits, p.

    All nan where it cannot be fitted (no errors, only errors, perfect separation, a constant).
    """
    import statsmodels.api as sm

    nothing = dict.fromkeys(("odds", "odds_low", "odds_high", "p", "length_odds", "length_p"), math.nan)
    x = both[[by, "tokens_non_eos_a"]].to_numpy(dtype=float)
    y = both["jot_error"].to_numpy()
    if len(np.unique(y)) < 2 or (x.std(0) == 0).any():
        return nothing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit = sm.Logit(y, sm.add_constant(x)).fit(disp=False, maxiter=200)
    except (Warning, np.linalg.LinAlgError):
        return nothing
    odds, limits = np.exp(fit.params), np.exp(fit.conf_int()[1])
    values = (odds[1], *limits, fit.pvalues[1], odds[2], fit.pvalues[2])
    return dict(zip(nothing, map(float, values), strict=True))


def stratified(runs: Runs) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fifths and trend tests: by achieved speedup at each threshold, and by full decoding's first mean margin."""
    groups, tests = [], []
    for tau, cell in runs.jot.items():
        both = side_by_side(cell, runs.full).assign(doublings=lambda f: np.log2(f["speedup"]))
        sets = [("speedup", "doublings", both)]
        if "full" in runs.traced:
            frame = runs.traced["full"].recorded.frame
            margin = dict(zip(frame["doc_id"], (float(m[0]) for m in frame["trace_mean_margin"]), strict=True))
            kept = both[both["doc_id"].isin(margin)]
            sets.append(("margin", "margin", kept.assign(margin=kept["doc_id"].map(margin))))
        for name, scale, frame in sets:
            about = {"model": runs.model, "task": runs.task, "tau": tau, "by": name}
            groups.append(fifths(frame, name).assign(**about))
            tests.append({**about, "n": len(frame), **trend(frame, scale)})
    return pd.concat(groups, ignore_index=True), pd.DataFrame(tests)


# --- failure modes ------------------------------------------------------------------------------------------


def modes(runs: Runs) -> pd.DataFrame:
    """Rate of each failure mode under full decoding, JoT and the other methods.

    ``other_right`` counts the documents that full decoding gets right, or, for full decoding, JoT's first threshold.
    """
    rows = []
    base = failure_modes.find(runs.full.recorded.frame, runs.docs)
    first = failure_modes.find(next(iter(runs.jot.values())).recorded.frame, runs.docs)
    named = {"full": runs.full} | {k: v for k, v in compared(runs).items() if not k.startswith("full")}
    for run, cell in named.items():
        found = failure_modes.find(cell.recorded.frame, runs.docs)
        right = (first if run == "full" else base).reindex(found.index) == "right"
        wrong = int((found != "right").sum())
        for name in failure_modes.MODES:
            hit = found == name
            count = int(hit.sum())
            rows.append({"model": runs.model, "task": runs.task, "run": run, "n": cell.n, "mode": name,
                         "count": count, "wrong": wrong,
                         "other_right": int((hit & right).sum()),
                         **share(count, cell.n, "rate"), **share(count, wrong, "of_wrong")})  # fmt: skip
    return pd.DataFrame(rows)


# --- criteria of notebooks/ANALYSIS.md ----------------------------------------------------------------------


def slow_errors(jot: Cell, full: Cell) -> Judged:
    """Whether the slowest fifth errs more than the fastest, with the Wilson intervals apart."""
    if jot.n < 5:
        return NOT_SHOWN, "needs 5 documents"
    groups = fifths(side_by_side(jot, full), "speedup")
    slow, fast = groups.iloc[0], groups.iloc[-1]
    above, below = slow["jot_low"] > fast["jot_high"], slow["jot_high"] < fast["jot_low"]
    parts = (spelling.of(g, "jot", unit=" %", gap=" ") for g in (slow, fast))
    detail = f"error {' in the slowest fifth, '.join(parts)} in the fastest; n = {jot.n:,}"
    return judged(True, above, below, detail)


def rejections(conservative: Cell, aggressive: Cell, full: Cell) -> Judged:
    """Whether McNemar, at the paper's n, keeps the conservative threshold and rejects the aggressive one."""
    if min(conservative.n, aggressive.n, full.n) < PAPER_N:
        return NOT_SHOWN, f"needs {PAPER_N} documents"
    results = [(cell.tau, tables.compare(cut(cell), cut(full))) for cell in (conservative, aggressive)]
    low, high = (result["p"] < stats.ALPHA for _, result in results)
    parts = [
        f"τ = {tau:g}: {r['difference']:+.1f} points, b = {r['b']}, c = {r['c']}, p = {r['p']:.2g}"
        for tau, r in results
    ]
    return judged(True, high and not low, low and not high, f"{'; '.join(parts)}; n = {PAPER_N}")


def _planned(records: Records, *thresholds: float) -> list[Cell | None]:
    """JoT of pocket-dream on gsm8k at some thresholds, then full decoding."""
    model, task = "pocket-dream", "pocket_gsm8k"
    points = [Point.of(model, task, "jot", tau_max=tau) for tau in thresholds]
    return [cells.lookup(records, each) for each in (*points, Point.of(model, task, "full"))]


def _errors_slow(records: Records) -> Judged:
    found = _planned(records, 90)
    return slow_errors(*found) if all(found) else (NOT_SHOWN, "not recorded")


def _aggressive_rejects(records: Records) -> Judged:
    found = _planned(records, 90, 30)
    return rejections(*found) if all(found) else (NOT_SHOWN, "not recorded")


PHENOMENA: dict[str, Callable[[Records], Judged]] = {
    "errors-slow": _errors_slow,
    "aggressive-rejects": _aggressive_rejects,
}
