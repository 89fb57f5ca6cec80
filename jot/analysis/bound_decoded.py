"""The reversal budgets of JoT as it was decoded, from recorded traces: exits and scheduled commits apart.

A budget is an expectation, of leading-pair reversals in the reference continuation of each commit; it bounds no single
document, and what decoding did afterwards is not that continuation. So tokens that differ from full decoding's stand
beside the budgets as a description, not as their test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import sources
from jot.analysis.cells import Cell, Records, lookup, short
from jot.runs.grid import Point
from jot.runs.parameters import home
from jot.sampler.output import EXITED
from jot.tasks import TASKS

TAUS = (3, 10, 30, 90)


def points(models: Iterable[str], tasks: Iterable[str]) -> list[Point]:
    """Full decoding and JoT at each threshold, with traces, on the tasks that have a score."""
    kept = [task for task in tasks if task not in TASKS or TASKS[task].metric is not None]
    out = []
    for model in models:
        for task in kept:
            found = [Point.of(model, task, "full"), *(Point.of(model, task, "jot", tau_max=tau) for tau in TAUS)]
            out += [dataclasses.replace(point, trace=True) for point in found]
    return out


def load(p: SimpleNamespace) -> Records:
    """The records with traces: the ``traces`` folder of the store, or the store itself where it has none."""
    wanted = points(p.models, p.tasks)
    if not wanted:
        return {}
    store = p.store or home() / ("results/store" if p.source == "live" else "data/records")
    if p.source == "live" or (store / "traces").is_dir():
        store = store / "traces"
    return sources.load(SimpleNamespace(**{**vars(p), "store": store}), wanted)


def found(records: Records, point: Point, seed: int = 0) -> Cell | None:
    """The recorded cell of a point at a seed, or None."""
    return lookup(records, dataclasses.replace(point, seed=seed))


class Trace(NamedTuple):
    """Commits of a cell, each ``[documents, length]``, documents in order of their ids."""

    documents: np.ndarray  # [documents]
    tokens: np.ndarray
    step: np.ndarray
    exited: np.ndarray  # an exit committed it, whether or not the schedule did so too
    ratio: np.ndarray  # ln r at the commit
    threshold: np.ndarray  # ln tau_i at the commit


def trace(cell: Cell) -> Trace | None:
    """The trace of a cell, or None where it was recorded without."""
    frame = cell.recorded.frame.sort_values("doc_id", kind="stable")
    if "trace_rule" not in frame or frame["trace_rule"].isna().any():
        return None
    columns = ("generated", "trace_step", "trace_rule", "trace_margin", "trace_threshold")
    tokens, step, rule, margin, threshold = (np.stack(frame[name].to_list()) for name in columns)
    exited = (rule & EXITED) > 0
    return Trace(
        frame["doc_id"].to_numpy(), tokens.astype(int), step, exited, margin.astype(float), threshold.astype(float)
    )


def bounded(log_ratio: np.ndarray) -> np.ndarray:
    """min(1, 2 / (1 + exp(x))): the proposition's bound for one commit at a ratio or threshold given by its log."""
    return np.minimum(1.0, 2 / (1 + np.exp(np.minimum(log_ratio, 700.0))))


def budgets(records: Records, models: Iterable[str], tasks: Iterable[str], seed: int = 0) -> pd.DataFrame:
    """One row per model, task and threshold: commits and budgets per document, means with bootstrap limits.

    Columns: model, task, tau, n (0 where the cell is not recorded), exits, scheduled (commits by the schedule alone),
    by_threshold (sum over exits of min(1, 2 / (1 + tau_i))), by_ratio (the same with r_i), scheduled_ratio (sum over
    scheduled commits with r_i, which no threshold vouches for), paper (2 L / (1 + tau_max)), lowest (smallest tau_i of
    an exit), ones and with_ones (share of the exits with tau_i = 1, where the bound says nothing, and of the documents
    with such an exit), uncovered (share of documents whose budget by threshold exceeds the paper's).
    """
    rows = []
    for point in points(models, tasks):
        if point.method != "jot":
            continue
        tau = point.params["tau_max"]
        row = {"model": short(point.model), "task": point.task, "tau": tau, "n": 0}
        cell = found(records, point, seed)
        seen = trace(cell) if cell else None
        if seen is None:
            rows.append(row)
            continue
        exited, length = seen.exited, seen.exited.shape[1]
        by_threshold = np.where(exited, bounded(seen.threshold), 0.0).sum(1)
        per_document = {
            "exits": exited.sum(1), "scheduled": (~exited).sum(1), "by_threshold": by_threshold,
            "by_ratio": np.where(exited, bounded(seen.ratio), 0.0).sum(1),
            "scheduled_ratio": np.where(exited, 0.0, bounded(seen.ratio)).sum(1),
        }  # fmt: skip
        for name, values in per_document.items():
            estimate = stats.paired_difference_bootstrap(values, np.zeros(len(values)))
            row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        at = seen.threshold[exited]
        paper = 2 * length / (1 + tau)
        rows.append(row | {
            "n": len(exited), "paper": paper, "length": length, "lowest": float(np.exp(at.min())),
            "ones": float((at <= 0).mean()), "uncovered": float((by_threshold > paper).mean()),
            "with_ones": float(((seen.threshold <= 0) & exited).any(1).mean()),
        })  # fmt: skip
    return pd.DataFrame(rows)


def hindsight(records: Records, models: Iterable[str], tasks: Iterable[str], seed: int = 0) -> pd.DataFrame:
    """Where JoT's tokens differ from full decoding's on the same document: description, no test of any bound.

    Columns: model, task, tau, n, differing (positions per document, with limits), differing_exits,
    differing_scheduled (shares of the commits of each kind), documents (share with any difference), first_exit (share
    of those in which all the earliest commits that differ were exits), spread (differing positions per such
    document: one early difference shifts what follows).
    """
    rows = []
    for point in points(models, tasks):
        if point.method != "jot":
            continue
        cells = (found(records, x, seed) for x in (point, Point.of(point.model, point.task, "full")))
        mine, full = (trace(cell) if cell else None for cell in cells)
        if mine is None or full is None:
            continue
        both, a, b = np.intersect1d(mine.documents, full.documents, return_indices=True)
        if not len(both):
            continue
        differs, exited, step = mine.tokens[a] != full.tokens[b], mine.exited[a], mine.step[a].astype(int)
        some = differs.any(1)
        earliest = np.where(differs, step, step.max() + 1).min(1, keepdims=True)
        first = differs & (step == earliest)
        count = stats.paired_difference_bootstrap(differs.sum(1), np.zeros(len(both)))
        rows.append({
            "model": short(point.model), "task": point.task, "tau": point.params["tau_max"], "n": len(both),
            "differing": count.value, "differing_low": count.low, "differing_high": count.high,
            "differing_exits": _ratio(differs & exited, exited), "documents": float(some.mean()),
            "differing_scheduled": _ratio(differs & ~exited, ~exited),
            "first_exit": float((exited | ~first).all(1)[some].mean()) if some.any() else np.nan,
            "spread": float(differs.sum(1)[some].mean()) if some.any() else np.nan,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _ratio(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum() / whole.sum()) if whole.any() else np.nan
