"""The numbers of the ablations as long frames: ours and the paper's, the order of exits, the ranking's precision.

Exploratory: intervals only. Scores are in percent, differences in points, speedups and ratios are factors.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import sources, tables
from jot.analysis.ablations import (
    HEADS,
    Ablation,
    Setting,
    difference,
    gather,
    point,
    shaped,
    short_task,
    shown,
    speeds,
)
from jot.analysis.cells import MODELS, TASKS, Cell, Records, family, lookup
from jot.records import pair
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError, home

WINDOWS = ((0.5, 8, 4), (0.5, 16, 8), (0.9, 16, 8))  # gamma, the wider and the narrower D
TRACED = 200  # documents of the traces that both precisions have


def _columns(name: str, estimate: stats.Estimate | None) -> dict[str, float]:
    value, low, high = estimate or (np.nan,) * 3
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def frame(
    records: Records, ablation: Ablation, models: Iterable[str] = MODELS, tasks: Iterable[str] = TASKS, seed: int = 0
) -> pd.DataFrame:
    """One row per model, task and setting: n (0 where not recorded), score, difference, speedup and ratio.

    ``compared`` and ``divided`` say whether the row has a reference of its own for scores and for speedups.
    """
    pairs = shown(ablation, models, tasks)
    keys = [(m, t, i) for m, t in pairs for i in range(len(ablation.settings))]
    found = gather(records, {(m, t, i): point(m, t, ablation.settings[i], seed) for m, t, i in keys})
    speed = speeds(found)
    rows = []
    for m, t, i in keys:
        setting, cell = ablation.settings[i], found.get((m, t, i))
        against, below = (ablation.settings.index(f(setting)) for f in (ablation.reference, ablation.beside))
        row = {"model": m, "family": family({"model": m}), "task": t, "row": i, "n": cell.n if cell else 0,
               "method": setting.get("method", "jot"), **{k: setting.get(k) for k in ablation.keys},
               "compared": against != i, "divided": below != i}  # fmt: skip
        both = cell and (m, t, against) in found and against != i
        ratio = cell and (m, t, below) in found and below != i
        row |= _columns("score", tables.score(cell) if cell else None)
        row |= _columns("difference", difference(cell, found[m, t, against]) if both else None)
        row |= _columns("speedup", speed[m, t, i].estimate() if cell else None)
        row |= _columns("ratio", speed[m, t, i].over(speed[m, t, below]) if ratio else None)
        rows.append(row)
    return pd.DataFrame(rows)


def published_frame(ablation: Ablation, table: pd.DataFrame) -> pd.DataFrame:
    """The paper's table, ``published.load(ablation.label)``, in the shape of ``frame``: no intervals, no n.

    ``difference`` and ``ratio`` are recomputed from the printed digits, against the same row as ours.
    """
    wide = table.assign(**{k: table[k] if k in table else np.nan for k in ablation.keys}).pivot_table(
        index=["model", "method", *ablation.keys, "task"], columns="metric", values="value", dropna=False, sort=False
    )
    wide = wide.dropna(how="all").reset_index()

    def at(setting: Setting, task: str) -> pd.Series | None:
        fits = (wide["task"] == task) & (wide["method"] == setting.get("method", "jot"))
        for key in ablation.keys:
            fits &= wide[key].isna() if setting.get(key) is None else wide[key] == setting[key]
        return wide[fits].iloc[0] if fits.sum() == 1 else None

    rows = []
    for task in ablation.tasks:
        for i, setting in enumerate(ablation.settings):
            here, other, below = (at(s, task) for s in (setting, ablation.reference(setting), ablation.beside(setting)))
            if here is None:
                continue
            compared, divided = ablation.reference(setting) != setting, ablation.beside(setting) != setting
            rows.append({
                "model": here["model"], "family": family({"model": here["model"]}), "task": task, "row": i,
                "method": here["method"], **{k: setting.get(k) for k in ablation.keys}, "score": here["score"],
                "difference": here["score"] - other["score"] if compared and other is not None else np.nan,
                "speedup": here["speedup"],
                "ratio": here["speedup"] / below["speedup"] if divided and below is not None else np.nan,
            })  # fmt: skip
    return pd.DataFrame(rows)


# --- exits beside the schedule or before it -----------------------------------------------------------------


def after_exit(
    records: Records, models: Iterable[str] = MODELS, tasks: Iterable[str] = TASKS, seed: int = 0
) -> pd.DataFrame:
    """`after_exit` against `or`, JoT at its default: both scores, both mean steps, and their paired differences."""
    rows = []
    for m, t in ((m, t) for m in models for t in tasks):
        found = gather(records, {c: Point.of(m, t, "jot", seed=seed, combine=c) for c in ("or", "after_exit")})
        row: dict = {"model": m, "task": t, "n": min((c.n for c in found.values()), default=0), "tau": None}
        whole = len(found) == 2
        for name, cell in found.items():
            row |= {"tau": cell.tau, f"{name}_steps": float(cell.column("steps").mean())}
            row |= _columns(name, tables.score(cell))
        row |= _columns("difference", difference(found["after_exit"], found["or"]) if whole else None)
        row |= _columns("steps", _steps(found["after_exit"], found["or"]) if whole else None)
        row["same"] = _same_tokens(found["after_exit"], found["or"]) if whole else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def _steps(method: Cell, reference: Cell) -> stats.Estimate:
    """Mean difference of steps per document, with a bootstrap interval."""
    return stats.paired_difference_bootstrap(method.column("steps"), reference.column("steps"))


def windows(records: Records, models: Iterable[str], tasks: Iterable[str] = TASKS, seed: int = 0) -> pd.DataFrame:
    """How often a wider window changes a short answer (Dream): the paper says that it cannot.

    ``same`` and ``steps`` are the shares of documents, in percent, with identical tokens and with as many steps.
    """
    rows = []
    short = [t for t in tasks if short_task(t) in ("mmlu", "hellaswag")]
    dream = [m for m in models if family({"model": m}) == "dream"]
    for m, t, (gamma, wide, narrow) in ((m, t, w) for m in dream for t in short for w in WINDOWS):
        found = gather(records, {d: point(m, t, shaped(90, gamma, d), seed) for d in (wide, narrow)})
        row = {"model": m, "task": t, "gamma": gamma, "wide": wide, "narrow": narrow, "n": 0}
        if len(found) == 2:
            same, steps = _same_tokens(found[wide], found[narrow]), found[wide].column("steps")
            row |= {"n": found[wide].n, "same": same, "steps": 100 * (steps == found[narrow].column("steps")).mean()}
        rows.append(row)
    return pd.DataFrame(rows, columns=["model", "task", "gamma", "wide", "narrow", "n", "same", "steps"])


# --- precision of the ranking -------------------------------------------------------------------------------


def _outputs(one: Cell, two: Cell) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Tokens of both cells and the longer answer length, per document."""
    both = pair(one.recorded, two.recorded)
    length = both[["tokens_non_eos_a", "tokens_non_eos_b"]].max(axis=1).to_numpy()
    return both["generated_a"].to_list(), both["generated_b"].to_list(), length


def _same_tokens(one: Cell, two: Cell) -> float:
    """Share of documents with identical generated tokens, in percent."""
    a, b, _ = _outputs(one, two)
    return 100 * float(np.mean([np.array_equal(x, y) for x, y in zip(a, b, strict=True)]))


def precision(
    records: Records, models: Iterable[str] = MODELS, tasks: Iterable[str] = TASKS, seed: int = 0
) -> pd.DataFrame:
    """Logits rounded to bfloat16 against float32, full decoding and JoT: scores, speedups and tokens.

    ``same`` is the share of documents with identical tokens (Wilson), ``positions`` the share of identical tokens
    up to the end of the longer answer; both in percent.
    """
    rows = []
    long = [t for t in tasks if short_task(t) in ("gsm8k", "humaneval")]
    for m, t, method in ((m, t, method) for m in models for t in long for method in ("full", "jot")):
        found = gather(records, {h: Point.of(m, t, method, seed=seed, head_dtype=h) for h in HEADS})
        row: dict = {"model": m, "task": t, "method": method, "n": min((c.n for c in found.values()), default=0)}
        for head in HEADS:
            row |= _columns(head, tables.score(found[head]) if head in found else None)
        whole = len(found) == 2
        same = positions = ratio = None
        if whole:
            a, b, length = _outputs(found["bfloat16"], found["float32"])
            equal = sum(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            low, high = stats.wilson(equal, len(a))
            same = stats.Estimate(100 * equal / len(a), 100 * low, 100 * high)
            agreed = [(np.asarray(x)[:k] == np.asarray(y)[:k]).sum() for x, y, k in zip(a, b, length, strict=True)]
            positions = 100 * float(np.sum(agreed) / max(1, length.sum()))
            speed = speeds(found)
            ratio = speed["bfloat16"].over(speed["float32"])
        row |= _columns("difference", difference(found["bfloat16"], found["float32"]) if whole else None)
        row |= _columns("ratio", ratio) | _columns("same", same)
        row["positions"] = np.nan if positions is None else positions
        rows.append(row)
    return pd.DataFrame(rows)


# --- from left to right -------------------------------------------------------------------------------------


def leftmost(step: np.ndarray, rule: np.ndarray, upto: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Scheduled commits of each canvas that took the leftmost remaining mask, and all its scheduled commits.

    Args:
        step: forward of each commit, (n, L); rule: bit 1 = chosen by the schedule, (n, L).
        upto: positions to look at, the first so many of each canvas, (n,); all by default.

    A position is the leftmost mask when everything before it was committed by an earlier forward.
    """
    step, scheduled = np.asarray(step), (np.asarray(rule) & 1) > 0
    before = np.maximum.accumulate(step, axis=1)
    before = np.concatenate([np.full((len(step), 1), -1, before.dtype), before[:, :-1]], axis=1)
    if upto is not None:
        scheduled = scheduled & (np.arange(step.shape[1]) < np.asarray(upto)[:, None])
    return (scheduled & (step > before)).sum(1), scheduled.sum(1)


def trace_points(models: Iterable[str], seed: int = 0) -> list[Point]:
    """Traces of full decoding on gsm8k in both precisions."""
    return [Point(m, "pocket_gsm8k", "full", settings=(("head_dtype", head),), seed=seed, trace=True, store="traces")
            for m in models for head in HEADS]  # fmt: skip


def load_traces(p: SimpleNamespace) -> Records:
    """The traces behind ``left_to_right``; none where a record set comes without them.

    They stand in the subfolder ``traces`` of the record folder. In live runs they are decoded for the packaged models.
    """
    models = [m for m in p.models if m.startswith("pocket-")]
    live = p.source == "live"
    place = Path(p.store or home() / ("results/store" if live else "data/records")) / "traces"
    asked = SimpleNamespace(**{**vars(p), "store": place, "limit": min(p.limit or TRACED, TRACED)})
    try:
        return sources.load(asked, trace_points(models, p.seed))
    except NotebookError:
        if live and models:
            raise
        return {}


def left_to_right(traces: Records, models: Iterable[str] = MODELS, seed: int = 0) -> pd.DataFrame:
    """How often the schedule takes the leftmost mask under each precision, on documents that both have.

    Shares in percent, over the whole canvas and over the answer (up to its first end-of-text token), with bootstrap
    intervals; ``difference`` is bfloat16 minus float32 in points.
    """
    rows = []
    for m in models:
        wanted = {p.params["head_dtype"]: p for p in trace_points([m], seed)}
        found = {h: lookup(traces, p) for h, p in wanted.items()}
        frames = {h: c.recorded.frame for h, c in found.items() if c and "trace_step" in c.recorded.frame}
        ids = set.intersection(*(set(f["doc_id"]) for f in frames.values())) if frames else set()
        for part in ("canvas", "answer"):
            row: dict = {"model": m, "task": "pocket_gsm8k", "part": part, "n": len(ids)}
            counts = {}
            for head, f in frames.items():
                f = f[f["doc_id"].isin(ids)].sort_values("doc_id", kind="stable")
                step, rule = (np.stack(f[f"trace_{k}"].to_list()) for k in ("step", "rule"))
                counts[head] = leftmost(step, rule, f["tokens_non_eos"].to_numpy() if part == "answer" else None)
            for head in HEADS:
                share = stats.ratio_bootstrap(*counts[head]) if head in counts else None
                row |= _columns(head, share and stats.Estimate(*(100 * x for x in share)))
            gap = (
                stats.ratio_difference_bootstrap(*counts["bfloat16"], *counts["float32"]) if len(counts) == 2 else None
            )
            row |= _columns("difference", gap and stats.Estimate(*(100 * x for x in gap)))
            rows.append(row)
    return pd.DataFrame(rows)
