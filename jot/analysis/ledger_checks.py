"""What an entry of the claims ledger can be checked with, beside the cells of `ledger_cells`: one claim a function.

Every function in `FUNCTIONS` may be called by a ``check`` of ``data/paper/claims.yaml``. It answers with a number, a
list of numbers, or a `Finding`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import published
from jot.analysis.ledger_cells import (
    MODELS,
    SAMPLES,
    TASKS,
    Finding,
    cell,
    cells,
    gap,
    gaps,
    kept,
    paper_table,
    rows,
    setting,
    span,
    speed_mean,
)
from jot.errors import UserError

MINOR = 10  # percent; how the ledger reads a "minor" or "small" overhead, said in the entries

# --- one claim each -----------------------------------------------------------------------------------------


def budget(length: float, tau: float) -> float:
    """The paper's reversal budget: ``2 L / (1 + tau)`` positions a sample."""
    return 2 * length / (1 + tau)


def negligible_budget(lengths: Sequence[float], below: float) -> Finding:
    """The reversal budget at every threshold of the paper's grid, for short generations."""
    taus = [float(t) for t in dict.fromkeys(rows("threshold_ablation jot")["tau_max"])]
    worst = {length: [budget(length, tau) for tau in taus] for length in lengths}
    detail = "; ".join(
        f"L = {length:g}: {v[0]:.2f} at tau {taus[0]:g}, {v[-1]:.2f} at {taus[-1]:g}" for length, v in worst.items()
    )
    return Finding(max(map(max, worst.values())) < below, f"{detail} positions a sample")


def within_one_error(task: str) -> Finding:
    """All differences between methods of a model lie within the largest standard error of its scores."""
    n, beyond, pairs, extremes = SAMPLES[task], 0, 0, []
    for name in MODELS:
        frame = rows(f"main_results {name} {task} score")
        score = dict(zip(frame["method"], frame["value"], strict=True))
        error = max(stats.standard_error_points(v / 100, n) for v in score.values())
        wide = [(a, b) for a, b in itertools.combinations(score, 2) if abs(score[a] - score[b]) > error + 1e-9]
        beyond, pairs = beyond + len(wide), pairs + math.comb(len(score), 2)
        if below := sorted(score[b] for a, b in wide if a == "full"):
            extremes.append(
                f"{MODELS[name]}: {score['full']:.1f} for full decoding against {span(below, '.1f')} "
                f"(standard error {error:.1f})"
            )
    detail = "; ".join([*extremes, f"{beyond} of {pairs} pairs of methods lie further apart than one standard error"])
    return Finding(beyond == 0, detail)


def errors(words: str) -> list[float]:
    """Binomial standard errors, in points, of the scores of the main table that fit, at the stated n."""
    frame = rows(f"main_results {words} score")
    return [
        stats.standard_error_points(v / 100, SAMPLES[t]) for v, t in zip(frame["value"], frame["task"], strict=True)
    ]


def errors_print(low: float, high: float, words: str) -> Finding:
    """Every standard error of the rows that fit rounds to a number from ``low`` to ``high``."""
    found = [round(e, 1) for e in errors(words)]
    return Finding(
        all(low <= e <= high for e in found),
        f"standard errors from {min(found):.1f} to {max(found):.1f} over {len(found)} scores",
    )


def best(words: str, value: float) -> Finding:
    """No table of the paper holds a higher score for the model and task than ``value``."""
    above = []
    for label in published.TABLES:
        frame = paper_table(label)
        if "task" not in frame or label in ("config", "quality") or not (frame["metric"] == "score").any():
            continue
        try:
            frame = rows(f"{label} {words} score")
        except UserError:
            continue  # a table without this model or task
        for _, row in frame[frame["value"] > value].iterrows():
            at = f", tau {row['tau_max']:g}" if "tau_max" in row and not pd.isna(row["tau_max"]) else ""
            above.append((row["value"], f"{row['value']:.1f} ({label}{at})"))
    found = [text for _, text in sorted(above, reverse=True)]
    return Finding(not above, f"higher: {', '.join(found)}" if above else f"nothing above {value:g}")


def lost(words: str) -> list[float]:
    """Share of the step speedup that the clock does not give back, in percent, per benchmark (`TASKS`); of the
    short benchmarks alone with ``short`` as last word."""
    words, short = words.removesuffix(" short"), words.endswith(" short")
    steps, clock = cells(f"main_results {words} speedup"), cells(f"wallclock {words} wallclock_speedup")
    found = [100 * (1 - c / s) for s, c in zip(steps, clock, strict=True)]
    return found[1:3] if short else found


def minor_overhead() -> Finding:
    """JoT loses less than `MINOR` percent of its step speedup on the clock, on every benchmark."""
    found = {name: dict(zip(TASKS, lost(f"{name} jot"), strict=True)) for name in MODELS}
    detail = "; ".join(
        f"{MODELS[name]}: " + ", ".join(f"{task} {v:.1f} %" for task, v in values.items())
        for name, values in found.items()
    )
    return Finding(all(v < MINOR for values in found.values() for v in values.values()), f"lost: {detail}")


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


def short_lose_more() -> Finding:
    """The short benchmarks lose a larger share of JoT's step speedup on the clock than the long ones."""
    parts, holds = [], True
    for name in MODELS:
        loss = dict(zip(TASKS, lost(f"{name} jot"), strict=True))
        short, long = (loss["mmlu"], loss["hellaswag"]), (loss["gsm8k"], loss["humaneval"])
        holds &= min(short) > max(long)
        parts.append(
            f"{MODELS[name]}: {min(short):.1f} to {max(short):.1f} % on the short ones, "
            f"{min(long):.1f} to {max(long):.1f} % on the long ones"
        )
    return Finding(holds, "; ".join(parts))


def frontier(words: str) -> Finding:
    """No method of the main table beats this one in both the aggregate speedup and the score retained."""
    model, method = words.split()
    names = [m for m in dict.fromkeys(rows(f"main_results {model}")["method"]) if m != "full"]
    at = {name: (speed_mean(f"{model} {name}"), kept(f"{model} {name}")) for name in names}
    over = [n for n in names if n != method and at[n][0] >= at[method][0] and at[n][1] >= at[method][1]]
    under = [n for n in names if n != method and at[n][0] <= at[method][0] and at[n][1] <= at[method][1]]
    detail = "; ".join(f"{n} {s:.2f}x at {k:.1f} %" for n, (s, k) in at.items())
    return Finding(not over, f"{detail}; {method} dominates {', '.join(under) or 'none'}")


def most_within(words: str, value: float) -> Finding:
    """More than half of the losses that fit are at most ``value`` points."""
    found = gaps(words)
    inside = sum(-g <= value + 1e-9 for g in found)
    return Finding(2 * inside > len(found), f"{inside} of {len(found)} within {value:g} points")


def fewer_everywhere(words: str, value: float) -> Finding:
    """Every loss of the rows that fit is at most ``value`` points."""
    found = gaps(words)
    worse = [g for g in found if -g > value + 0.05 + 1e-9]
    return Finding(not worse, f"{len(worse)} of {len(found)} lose more; worst {min(found):+.1f} points")


def mcnemar(b: float, c: float) -> float:
    """Exact two-sided McNemar p of ``b`` repairs and ``c`` breaks."""
    return stats.mcnemar_exact(round(b), round(c))


def discordant(agreement: float, difference: float, n: float) -> list[int]:
    """Repairs and breaks ``[b, c]`` of ``n`` documents with that agreement (percent) and difference (points)."""
    total, net = round(n * (1 - agreement / 100)), round(n * difference / 100)
    return [(total + net) // 2, (total - net) // 2]


def tango_low(b: float, c: float, n: float) -> float:
    """Lower Tango 95 % limit of the paired difference, in points."""
    return 100 * stats.tango(int(b), int(c), int(n)).low


def apart(worse: float, better: float, n: float) -> Finding:
    """The Wilson 95 % intervals of two error rates (percent of ``n`` documents each) do not overlap."""
    a, b = (stats.wilson(round(p * n / 100), int(n)) for p in (worse, better))
    return Finding(
        a.low > b.high,
        f"[{100 * a.low:.1f}, {100 * a.high:.1f}] and [{100 * b.low:.1f}, {100 * b.high:.1f}] %, n = {n:g} each",
    )


def raw_ratio(threshold: float, temperature: float) -> float:
    """The untempered top-2 ratio at which a two-way choice reaches ``threshold`` after ``temperature``."""
    return (threshold / (1 - threshold)) ** temperature


def ruin(goal: float) -> float:
    """Chance that a gambler with 1 in a fair game of unit stakes reaches ``goal`` before 0, by linear equations."""
    inner = int(goal) - 1
    system = np.eye(inner) - 0.5 * (np.eye(inner, k=1) + np.eye(inner, k=-1))
    target = np.zeros(inner)
    target[-1] = 0.5
    return float(np.linalg.solve(system, target)[0])


def epsilon_is_immaterial(epsilon: float, tau: float) -> Finding:
    """At the threshold the constant in the ratio moves it by less than float32 resolves."""
    second = 1 / (1 + tau)  # the runner-up's probability in a two-way choice at the threshold
    shift = epsilon / second
    return Finding(shift < 2**-24, f"relative shift {shift:.1e}, float32 resolves {2**-24:.1e}")


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


FUNCTIONS: dict[str, Callable] = {
    f.__name__: f
    for f in (
        cell, cells, gap, gaps, speed_mean, kept, setting, budget, negligible_budget, within_one_error, errors,
        errors_print, best, lost, minor_overhead, short_lose_more, overhead, frontier, most_within, fewer_everywhere,
        mcnemar, discordant, tango_low, apart, raw_ratio, ruin, epsilon_is_immaterial, shorter_than_windows,
        windows_coincide, columns_of,
    )
} | {"min": min, "max": max, "abs": abs, "sum": sum, "len": len, "ln": math.log}  # fmt: skip
