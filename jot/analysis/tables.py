"""The numbers of the main comparison: pure functions of a record set, answered as long frames.

Scores are in percent, differences in points, speedups are factors. ``jot.analysis.render`` writes them out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from jot import stats
from jot.analysis.cells import (
    ALL,
    BASELINES,
    DEFAULT_TAU,
    METHODS,
    MODELS,
    PAPER_METHODS,
    TASKS,
    TAUS,
    VARIANTS,
    Cell,
    Records,
    baseline,
    family,
    find,
    lookup,
)
from jot.errors import UserError
from jot.records import pair

PAIRED = ["model", "task", "method", "tau", "n", "b", "c", "p", "midp", "difference", "low", "high", "verdict",
          "smallest_margin", "holm"]  # fmt: skip

# --- numbers ------------------------------------------------------------------------------------------------


def score(cell: Cell) -> stats.Estimate:
    """Share of right answers in percent, with its Wilson interval."""
    right, n = cell.column("score").sum(), cell.n
    low, high = stats.wilson(right, n)
    return stats.Estimate(100 * right / n, 100 * low, 100 * high)


def speedup(cell: Cell) -> stats.Estimate:
    """Configured over actual steps, ratio of sums, with its bootstrap interval."""
    return stats.ratio_bootstrap(cell.column("configured_steps"), cell.column("steps"))


def forwards(cell: Cell) -> dict[str, float]:
    """Forwards per document by kind: over the whole canvas, from a block to its end, inside a block."""
    return {f"forwards_{kind}": float(cell.column(f"forwards_{kind}").mean()) for kind in ("full", "suffix", "block")}


def compare(method: Cell, baseline: Cell, margin: float = stats.MARGIN) -> dict:
    """Paired comparison of two cells; differences and limits in points, method minus baseline.

    Raises:
        UserError: the cells differ in documents, prompts, weights, dtype or hardware.
    """
    both = pair(method.recorded, baseline.recorded)
    n = len(both)
    b, c = stats.discordant(both["score_a"], both["score_b"])
    low, high = (100 * x for x in stats.tango(b, c, n))
    return {
        "n": n,
        "b": b,
        "c": c,
        "p": stats.mcnemar_exact(b, c),
        "midp": stats.mcnemar_midp(b, c),
        "difference": 100 * (b - c) / n,
        "low": low,
        "high": high,
        "verdict": stats.verdict(low, high, margin),
        "smallest_margin": stats.smallest_margin(low),
    }


def calibrate(by_tau: Mapping[float, Cell], full: Cell, margin: float = stats.MARGIN) -> float | None:
    """The smallest threshold whose lower paired limit to full decoding stays above ``-margin``, or None."""
    passing = [tau for tau, cell in by_tau.items() if compare(cell, full, margin)["low"] > -margin]
    return min(passing, default=None)


def _grid(records: Records, model: str, task: str, split: str, seed: int) -> tuple[Cell | None, dict[float, Cell]]:
    found = {tau: find(records, model, task, "jot", tau=tau, split=split, seed=seed) for tau in TAUS}
    full = find(records, model, task, split=split, seed=seed)
    return full, {tau: cell for tau, cell in found.items() if cell}


def choose(records: Records, model: str, task: str, split: str = "dev", seed: int = 0) -> tuple[float | None, bool]:
    """Calibrated threshold on ``split``, and whether full decoding and the whole grid are recorded there."""
    full, by_tau = _grid(records, model, task, split, seed)
    if full is None or set(by_tau) != set(TAUS):
        return None, False
    return calibrate(by_tau, full), True


def select(
    records: Records,
    models: Iterable[str] = MODELS,
    tasks: Iterable[str] = TASKS,
    methods: Iterable[str] = METHODS,
    seed: int = 0,
) -> dict[tuple[str, str, str], Cell]:
    """Test cells of the main table, keyed (model, task, method); what is not recorded is left out.

    Raises:
        UserError: an unknown method, or none is recorded.
    """
    found = {}
    methods = list(methods)
    if unknown := [method for method in methods if method not in ALL]:
        raise UserError(f"unknown method {unknown[0]!r} of the main table; known are {', '.join(ALL)}")
    methods.sort(key=ALL.index)
    for model, task, method in itertools.product(models, tasks, methods):
        cell = None
        if method not in METHODS:
            point = baseline(model, task, method, seed=seed)
            cell = lookup(records, point) if point else None
        elif method == "full":
            cell = find(records, model, task, seed=seed)
        elif method == "jot":
            cell = find(records, model, task, "jot", tau=DEFAULT_TAU[family({"model": model})], seed=seed)
        elif (tau := choose(records, model, task, seed=seed)[0]) is not None:
            cell = find(records, model, task, "jot", tau=tau, seed=seed)
        if cell:
            found[model, task, method] = cell
    if not found:
        raise UserError(f"none of the table's cells is among the records (seed {seed}); choose other parameters")
    return found


def _difference(kind: str, x: Cell, y: Cell) -> stats.Estimate:
    if kind == "score":
        result = compare(x, y)
        return stats.Estimate(result["difference"], result["low"], result["high"])
    both = pair(x.recorded, y.recorded).sort_values("doc_id", kind="stable")
    columns = ("configured_steps_a", "steps_a", "configured_steps_b", "steps_b")
    return stats.ratio_difference_bootstrap(*(both[c].to_numpy(dtype=float) for c in columns))


def _marks(kind: str, group: Sequence[Cell], numbers: Sequence[stats.Estimate]) -> list[str]:
    """ "best" / "second" per cell, given only where the next one down is separated from it."""
    order = sorted(range(len(group)), key=lambda i: -numbers[i].value)
    marks = [""] * len(group)
    for name, here, below in zip(("best", "second"), order, order[1:], strict=False):
        if _difference(kind, group[here], group[below]).excludes():
            marks[here] = name
    return marks


def main(found: Mapping[tuple[str, str, str], Cell]) -> pd.DataFrame:
    """Table 1, long: one row per (model, task, method) with score, speedup, their intervals and marks."""
    rows = []
    for model, task in dict.fromkeys((m, t) for m, t, _ in found):
        group = {method: cell for (m, t, method), cell in found.items() if (m, t) == (model, task)}
        ranked = {cell.id: cell for method, cell in group.items() if method not in VARIANTS}
        distinct = list((ranked | {cell.id: cell for cell in group.values()}).values())  # calibrated may be default
        marks, numbers = {}, {}
        for kind, measure in (("score", score), ("speedup", speedup)):
            numbers[kind] = [measure(cell) for cell in distinct]
            marks[kind] = _marks(kind, distinct[: len(ranked)], numbers[kind][: len(ranked)])
            marks[kind] += [""] * (len(distinct) - len(ranked))
        at = {cell.id: i for i, cell in enumerate(distinct)}
        for method, cell in group.items():
            row = {
                "model": model,
                "family": family(cell.config),
                "task": task,
                "method": method,
                "tau": cell.tau,
                "n": cell.n,
                "cell": cell.id,
            }
            for kind in ("score", "speedup"):
                estimate = numbers[kind][at[cell.id]]
                row |= {
                    kind: estimate.value,
                    f"{kind}_low": estimate.low,
                    f"{kind}_high": estimate.high,
                    f"{kind}_mark": marks[kind][at[cell.id]],
                }
            rows.append(row)
    return pd.DataFrame(rows)


def paired(found: Mapping[tuple[str, str, str], Cell], margin: float = stats.MARGIN) -> pd.DataFrame:
    """JoT against full decoding per (model, task); Holm over the default's rows, the confirmatory family."""
    rows = [
        {
            "model": m,
            "task": t,
            "method": method,
            "tau": cell.tau,
            **compare(cell, found[m, t, "full"], margin),
        }
        for (m, t, method), cell in found.items()
        if method in ("jot", "calibrated") and (m, t, "full") in found
    ]
    frame = pd.DataFrame(rows, columns=None if rows else PAIRED)
    if len(frame):
        default = frame["method"] == "jot"
        frame["holm"] = math.nan
        frame.loc[default, "holm"] = stats.holm(frame.loc[default, "p"].to_list())
    return frame


def secondary(found: Mapping[tuple[str, str, str], Cell], margin: float = stats.MARGIN) -> pd.DataFrame:
    """JoT's default against each other early-exit method, paired: the plan's secondary family, Holm per model.

    ``b`` counts the documents that only JoT gets right. ``ratio`` is JoT's speedup over the other's, and
    ``full_*`` the other method minus full decoding, in points.
    """
    rows = []
    for (m, t, method), cell in found.items():
        jot, full = found.get((m, t, "jot")), found.get((m, t, "full"))
        if method not in BASELINES or jot is None:
            continue
        both = pair(jot.recorded, cell.recorded).sort_values("doc_id", kind="stable")
        ratio = stats.ratio_bootstrap(both["steps_b"].to_numpy(), both["steps_a"].to_numpy())
        row = {"model": m, "task": t, "tau": jot.tau, "against": method, **compare(jot, cell, margin)}
        row |= {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
        if full:
            result = compare(cell, full, margin)
            row |= {f"full_{k}": result[k] for k in ("difference", "low", "high")}
        rows.append(row)
    frame = pd.DataFrame(rows)
    if len(frame):
        frame["holm"] = math.nan
        for _, group in frame.groupby("model"):
            frame.loc[group.index, "holm"] = stats.holm(group["p"].to_list())
    return frame


def decomposition(found: Mapping[tuple[str, str, str], Cell]) -> pd.DataFrame:
    """Speedup per cell: ratio of sums, mean of ratios, and the split into tokens per forward and padding."""
    rows = []
    for (model, task, method), cell in found.items():
        columns = [cell.column(c) for c in ("configured_steps", "steps", "tokens_non_eos")]
        rows.append(
            {
                "model": model,
                "task": task,
                "method": method,
                "tau": cell.tau,
                "n": cell.n,
                **stats.speedup_split(*columns)._asdict(),
                "steps": float(columns[1].mean()),
                "non_eos": float(columns[2].mean()),
                "empty": 100 * float(cell.column("empty").mean()),
                **forwards(cell),
            }
        )
    return pd.DataFrame(rows)


def calibration(
    records: Records, models: Iterable[str] = MODELS, tasks: Iterable[str] = TASKS, seed: int = 0
) -> pd.DataFrame:
    """Threshold chosen on dev and what it gives on test, beside what choosing on test would have claimed."""
    rows = []
    for model in models:
        for task in tasks:
            row = {"model": model, "task": task, "default": DEFAULT_TAU[family({"model": model})]}
            full, by_tau = _grid(records, model, task, "test", seed)
            for split in ("dev", "test"):
                tau, complete = choose(records, model, task, split, seed)
                row |= {f"{split}_tau": tau, f"{split}_complete": complete}
                if full and tau in by_tau:
                    result = compare(by_tau[tau], full)
                    row |= {f"{split}_{k}": result[k] for k in ("difference", "low", "high")}
                    row[f"{split}_speedup"] = speedup(by_tau[tau]).value
            rows.append(row)
    return pd.DataFrame(rows)


def aggregate(frame: pd.DataFrame) -> pd.DataFrame:
    """Over the tasks of ``main``: geometric-mean speedup, the same without each task, and retention."""
    rows = []
    for (model, method), group in frame[frame["method"] != "full"].groupby(["model", "method"], sort=False):
        full = frame[(frame["model"] == model) & (frame["method"] == "full")].set_index("task")["score"]
        group = group[group["task"].isin(full.index)].set_index("task")
        if len(group) > 1:
            left_out = stats.leave_one_out(group["speedup"].to_dict())
            rows.append(
                {
                    "model": model,
                    "method": method,
                    "tasks": len(group),
                    "geometric_mean": stats.geometric_mean(group["speedup"]),
                    "retention": stats.retention(group["score"], full[group.index]),
                    **{f"without {task}": value for task, value in left_out.items()},
                }
            )
    return pd.DataFrame(rows)


def published_rows(table: pd.DataFrame, methods: Iterable[str] = PAPER_METHODS) -> pd.DataFrame:
    """The paper's Table 1, ``published.load("main_results")``, in the shape of ``main``, pocket names."""
    wide = (
        table[table["method"].isin(list(methods))]
        .pivot_table(index=["model", "method", "task"], columns="metric", values="value", sort=False)
        .reset_index()
    )
    return wide.assign(task="pocket_" + wide["task"])[["model", "method", "task", "score", "speedup"]]
