"""How a canvas is filled: mean margin per step, the rule of every commit, and which step filled which position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from jot import stats
from jot.analysis import cells, sources
from jot.analysis.cells import Cell, Records
from jot.analysis.spelling import interval
from jot.paper.criteria import NOT_SHOWN, Judged, judged
from jot.records import natural
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError, home

TASK = "pocket_gsm8k"
SCHEDULED, EXITED = 1, 2  # bits of a trace's rule
EDGE = 1e-3  # nats
SHOWN = 0.1  # a step of the mean is drawn while at least this share of the documents is still running

Traces = dict[tuple[str, float | None], Cell]  # (model, tau_max), None for full decoding


# --- loading ------------------------------------------------------------------------------------------------


def thresholds(values: Iterable[object]) -> list[float]:
    """The parameter ``thresholds`` as numbers, ascending.

    Raises:
        NotebookError: one is no number of at least 1.
    """
    found = []
    for value in values:
        try:
            found.append(float(value))
        except (TypeError, ValueError):
            found.append(math.nan)
        if not found[-1] >= 1:
            raise NotebookError(f"parameter thresholds: {value!r} is no number of at least 1")
    return sorted(dict.fromkeys(found))


def points(p: SimpleNamespace) -> dict[tuple[str, float | None], Point]:
    """The traced cells that the parameters ask for, by model and threshold."""
    if len(p.tasks) != 1:
        raise NotebookError(f"this notebook takes one task, not {len(p.tasks)}: pass tasks={TASK}")
    if unknown := [m for m in p.methods if m not in ("full", "jot")]:
        raise NotebookError(f"this notebook shows the methods full and jot, not {unknown[0]!r}")
    wanted = {}
    for model in p.models:
        if "full" in p.methods:
            wanted[model, None] = Point.of(model, p.tasks[0], "full", seed=p.seed)
        for tau in thresholds(p.thresholds) if "jot" in p.methods else ():
            wanted[model, tau] = Point.of(model, p.tasks[0], "jot", seed=p.seed, tau_max=tau)
    return {key: replace(point, trace=True) for key, point in wanted.items()}


def load(p: SimpleNamespace) -> Traces:
    """The traced runs; those that are not recorded are left out.

    Raises:
        NotebookError: there is no traced run of what the parameters ask for.
    """
    wanted = points(p)
    place = p.store or home() / ("results/store" if p.source == "live" else "data/records")
    place = Path(place) / "traces"
    if p.source != "live" and not place.is_dir():
        raise NotebookError(
            "there are no traced runs (the folder traces beside the records): check data/records out, "
            "or pass source=live to decode on this machine"
        )
    records = sources.load(SimpleNamespace(**vars(p) | {"store": place}), wanted.values())
    found = {(cells.short(m), tau): cells.lookup(records, point) for (m, tau), point in wanted.items()}
    found = {key: cell for key, cell in found.items() if cell and "trace_step" in cell.recorded.frame}
    if not found:
        raise NotebookError("none of these runs is recorded with traces; choose others or pass source=live")
    return found


def ordered(cell: Cell) -> pd.DataFrame:
    """A cell's samples in the order of the documents."""
    frame = cell.recorded.frame
    return frame.iloc[sorted(range(len(frame)), key=lambda i: natural(frame["doc_id"].iloc[i]))].reset_index(drop=True)


# --- commits ------------------------------------------------------------------------------------------------


def commits(cell: Cell) -> dict[str, stats.Estimate]:
    """Shares of a cell's commits, with percentile bootstrap limits over documents.

    ``exit``, ``both``, ``schedule``: committed by the exit rule alone, by both, by the schedule alone (percent);
    ``edge``: margin within ``EDGE`` nats of the threshold (percent; nan under full decoding); ``per_step``:
    commits per step; ``steps``: steps per document.
    """
    frame = ordered(cell)
    rule = np.stack([np.asarray(r) for r in frame["trace_rule"]])
    gap = np.stack([np.asarray(m, float) - np.asarray(t, float)
                    for m, t in zip(frame["trace_margin"], frame["trace_threshold"], strict=True)])  # fmt: skip
    n, length = rule.shape
    steps, ones = frame["steps"].to_numpy(float), np.ones(n)
    done = (rule > 0).sum(1)

    def of_all(hits: np.ndarray) -> stats.Estimate:
        return stats.Estimate(*(100 * x for x in stats.ratio_bootstrap(hits.sum(1), done)))

    edge = of_all(np.abs(gap) < EDGE) if np.isfinite(gap).any() else stats.Estimate(*[math.nan] * 3)
    return {
        "exit": of_all(rule == EXITED),
        "both": of_all(rule == EXITED | SCHEDULED),
        "schedule": of_all(rule == SCHEDULED),
        "edge": edge,
        "per_step": stats.ratio_bootstrap(done, steps),
        "steps": stats.ratio_bootstrap(steps, ones),
    }


def filling(traces: Traces) -> pd.DataFrame:
    """``commits`` of every run, one row each."""
    rows = []
    for (model, tau), cell in traces.items():
        frame = cell.recorded.frame
        row = {"model": model, "task": cell.config["task"], "tau": math.nan if tau is None else tau, "n": cell.n,
               "score": 100 * float(frame["score"].mean()), "at_edge": near_edge(cell),
               "commits": sum(int((np.asarray(rule) > 0).sum()) for rule in frame["trace_rule"])}  # fmt: skip
        for name, (value, low, high) in commits(cell).items():
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def near_edge(cell: Cell) -> int:
    """How many commits had a margin within ``EDGE`` nats of the threshold."""
    pairs = zip(cell.recorded.frame["trace_margin"], cell.recorded.frame["trace_threshold"], strict=True)
    return int(sum((np.abs(np.asarray(m, float) - np.asarray(t, float)) < EDGE).sum() for m, t in pairs))


# --- margins per step ---------------------------------------------------------------------------------------


def curves(cell: Cell) -> np.ndarray:
    """Mean margin of the masks that a step reads, nats, ``[documents, most steps]``, nan after a document's end."""
    rows = [np.asarray(m, float) for m in ordered(cell)["trace_mean_margin"]]
    out = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out


def band(curve: np.ndarray, seed: int = 0) -> pd.DataFrame:
    """Mean over the documents still running at each step, with its percentile bootstrap band over documents.

    Columns: step (from 1), n (documents running), mean, low, high; nan limits where fewer than two run.
    """
    running = np.isfinite(curve)
    sums = stats.bootstrap_sums(np.where(running, curve, 0.0).T, seed=seed)
    counts = stats.bootstrap_sums(running.T.astype(float), seed=seed)
    n = running.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = np.where(counts > 0, sums / counts, np.nan)
        mean = np.where(n > 0, np.nansum(np.where(running, curve, 0.0), 0) / n, np.nan)
    limits = np.full((2, len(n)), np.nan)
    limits[:, n > 1] = np.nanquantile(draws[n > 1], [stats.ALPHA / 2, 1 - stats.ALPHA / 2], axis=1)
    return pd.DataFrame({"step": np.arange(1, len(n) + 1), "n": n, "mean": mean, "low": limits[0], "high": limits[1]})


def per_step(traces: Traces) -> pd.DataFrame:
    """``band`` of every run, cut where fewer than ``SHOWN`` of its documents still run."""
    parts = []
    for (model, tau), cell in traces.items():
        frame = band(curves(cell))
        frame = frame[frame["n"] >= max(1, SHOWN * cell.n)]
        parts.append(frame.assign(model=model, tau=math.nan if tau is None else tau))
    return pd.concat(parts, ignore_index=True)


def spearman(cell: Cell, steps: int | None = None) -> np.ndarray:
    """Spearman's rho of mean margin and step for each document with at least three steps (of the first ``steps``)."""
    found = []
    for values in ordered(cell)["trace_mean_margin"]:
        values = np.asarray(values, float)[:steps]
        if len(values) > 2 and np.ptp(values) > 0:
            found.append(float(spearmanr(np.arange(len(values)), values).statistic))
    return np.array(found)


def decline(cell: Cell, steps: int | None = None) -> stats.Estimate:
    """Mean over documents of ``spearman``, with a percentile bootstrap interval over documents."""
    rho = spearman(cell, steps)
    if not rho.size:
        return stats.Estimate(math.nan, math.nan, math.nan)
    return stats.paired_difference_bootstrap(rho, np.zeros_like(rho))


def first_block(cell: Cell) -> tuple[int, stats.Estimate] | None:
    """The block length of a cell decoded in blocks, and ``decline`` within the first one; None for one whole canvas."""
    block = cell.config["decode"].get("block_length")
    return (block, decline(cell, block)) if block else None


def rho(cell: Cell) -> str:
    """``decline`` in words: over all steps and, where the canvas is decoded in blocks, within the first of them."""
    text = f"mean rho {interval(*decline(cell), digits=2, sign='+', gap=' ')}"
    if inside := first_block(cell):
        block, value = inside
        text += f" over all steps, which run through blocks of {block}; within the first block "
        text += interval(*value, digits=2, sign="+", gap=" ")
    return f"{text}, n = {cell.n:,}"


def declines(traces: Traces) -> pd.DataFrame:
    """Full decoding of each model: mean rho over all steps and over the first block's, and margins on the way."""
    rows = []
    for (model, tau), cell in traces.items():
        if tau is not None:
            continue
        each, curve = spearman(cell), curves(cell)
        value, low, high = decline(cell)
        _, inside = first_block(cell) or (None, stats.Estimate(*[math.nan] * 3))
        steps = curve.shape[1]  # the middle half, since a block's first step is far from its last
        marks = {"first": slice(1), "middle": slice(steps // 4, steps - steps // 4), "last": slice(steps - 1, None)}
        rows.append({"model": model, "task": cell.config["task"], "n": cell.n,
                     "rho": value, "rho_low": low, "rho_high": high,
                     "block": inside.value, "block_low": inside.low, "block_high": inside.high,
                     "falling": 100 * float((each < 0).mean()) if each.size else math.nan,
                     **{name: float(np.nanmean(curve[:, at])) for name, at in marks.items()},
                     "peak": int(np.nanargmax(np.nanmean(curve, 0))) + 1})  # fmt: skip
    return pd.DataFrame(rows)


# --- single documents ---------------------------------------------------------------------------------------


def chosen(traces: Traces, model: str, count: int) -> list[str]:
    """The first documents of the fixed order that full decoding of a model gets right: the rule of the figures."""
    cell = traces.get((model, None))
    if cell is None:
        return []
    right = set(cell.recorded.frame.loc[cell.recorded.frame["score"] > 0.5, "doc_id"])
    order = sources.order(cell.config["task"], cell.config["split"], cell.recorded.frame["doc_id"])
    return [doc_id for doc_id in order if doc_id in right][:count]


def slowest(traces: Traces, model: str, tau: float | None, count: int) -> str | None:
    """Of the first ``count`` chosen documents the one that takes JoT the most steps, the first of them on a tie."""
    ids = chosen(traces, model, count)
    if (cell := traces.get((model, tau))) is None:
        return ids[0] if ids else None
    return max(ids, key=lambda doc_id: sample(cell, doc_id)["steps"], default=None)


def sample(cell: Cell, doc_id: str) -> pd.Series:
    """One document's row."""
    return cell.recorded.frame.set_index("doc_id").loc[doc_id]


def strip(row: Mapping, texts: Mapping[int, str]) -> pd.DataFrame:
    """A canvas by position: step of the commit (from 1), rule, and the text of the committed token."""
    tokens = [texts.get(int(token), str(int(token))) for token in row["generated"]]
    step = np.asarray(row["trace_step"], int) + 1
    return pd.DataFrame({"step": step, "rule": np.asarray(row["trace_rule"], int), "text": tokens})


# --- the criterion of notebooks/ANALYSIS.md -------------------------------------------------------------------


def judge(full: Mapping[str, Cell]) -> Judged:
    """Seen where rho's interval over all steps lies below 0 in every model, not seen where it lies above in one."""
    values = {model: decline(cell) for model, cell in full.items()}
    detail = "; ".join(f"{model}: {rho(cell)}" for model, cell in full.items())
    whole = set(cells.MODELS) <= set(full)
    return judged(whole, all(v.high < 0 for v in values.values()), any(v.low > 0 for v in values.values()), detail)


def dynamics_decline(records: Records) -> Judged:
    """Whether mean margin falls over the steps of full decoding on gsm8k, in both models.

    ``records`` may be the traced runs or all records; without traces in them, the packaged traces are read.
    """
    found: dict[str, Cell] = {}
    for model in cells.MODELS:
        point = Point.of(model, TASK, "full")
        cell = cells.lookup(records, point)
        if cell is None or "trace_mean_margin" not in cell.recorded.frame:
            folder = home() / "data" / "records" / "traces"
            cell = cells.lookup(sources.recorded(folder), point) if folder.is_dir() else None
        if cell is None or "trace_mean_margin" not in cell.recorded.frame:
            return NOT_SHOWN, f"no traced full decoding of {model}"
        found[model] = cell
    return judge(found)


PHENOMENA: dict[str, Callable[[Records], Judged]] = {"dynamics-decline": dynamics_decline}
