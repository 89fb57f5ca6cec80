"""What the commits of ``bound_pocket`` show: flips against the bounds, label bounds on the corollary, drift of q."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis.bound_pocket import SPLITS, Measured, live, read, write
from jot.analysis.cells import family
from jot.runs.parameters import home

FEW = 5  # events below which a bootstrap over documents is not to be trusted


def commits(frame: pd.DataFrame, meta: dict) -> pd.DataFrame:
    """The rows with what they mean: share q at the commit and at the end, and which of the two tokens is true.

    Added columns: share, end_share, paired, wrong (the runner-up is the true token), flipped, padding (the leader is
    EOS, which is known at the commit, so a split by it leaves the bound valid).
    """
    share, end = (1 / (1 + np.exp(x)) for x in (frame["margin"].astype(float), -frame["end"].astype(float)))
    wrong = frame["truth"] == frame["runner"]
    return frame.assign(
        share=share, end_share=end, wrong=wrong, paired=wrong | (frame["truth"] == frame["leader"]),
        flipped=frame["flip"] >= 0, padding=frame["leader"] == meta["eos"],
    )  # fmt: skip


def _mean(values: pd.Series, rows: pd.DataFrame, documents: int) -> stats.Estimate:
    """Mean of a column over commits, bootstrapped over documents (those without a commit included)."""
    sums = np.bincount(rows["document"], values.astype(float), minlength=documents)
    with np.errstate(invalid="ignore"):  # a resample without any commit says nothing
        return stats.ratio_bootstrap(sums, np.bincount(rows["document"], minlength=documents))


def _share(values: pd.Series, rows: pd.DataFrame, documents: int) -> stats.Estimate:
    """``_mean`` of a 0/1 column; where none is 1, the exact one-sided limit as if commits were independent."""
    found = _mean(values, rows, documents)
    return found if values.any() else found._replace(high=none_of(len(values)))


def none_of(n: int, alpha: float = stats.ALPHA) -> float:
    """One-sided exact (Clopper-Pearson) upper limit of a share of which 0 in ``n`` were seen."""
    return 1 - alpha ** (1 / n)


def _named(name: str, estimate: stats.Estimate) -> dict:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def rates(measured: Measured, padding: bool = False) -> pd.DataFrame:
    """Flips per model, task and threshold, each position once, against the proposition's and the corollary's bounds.

    Rates are shares, with 95 % bootstrap limits over documents (``_low``, ``_high``). Columns: model, task, documents,
    positions, tau, entered, dropped (share of the commits with the true token outside the pair), n (the rest), flips,
    rate, mean_bound (mean 2q), bound, excess (rate minus mean 2q), all_rate (flips over all commits, which nothing
    covers), wrong (P(x = u)), model_wrong (mean q, what the model says it is), markov ((1 + tau) P(x = u): the label
    bound on the calibration term at kappa = tau), best_kappa and corollary (the label bound on a flip, at its best
    kappa), labels (2 P(x = u), the bound on a flip of the true share that needs no kappa), few (whether fewer than
    ``FEW`` flips were seen and allowed by mean 2q, so that no bootstrap can tell them apart).
    """
    out = []
    for frame, meta in measured:
        rows, documents = commits(frame, meta), meta["documents"]
        rows = rows[rows["padding"] == padding]
        for t, tau in enumerate(meta["thresholds"]):
            entered = rows[(rows["first"] <= t) & (t <= rows["last"])]
            pair = entered[entered["paired"]]
            if pair.empty:
                continue
            wrong = _share(pair["wrong"], pair, documents)
            p = max(wrong.value, 1e-12)
            out.append({
                "model": meta["model"], "task": meta["task"], "documents": documents, "positions": meta["positions"],
                "tau": tau, "entered": len(entered), "dropped": 1 - len(pair) / len(entered), "n": len(pair),
                "flips": int(pair["flipped"].sum()), **_named("rate", _share(pair["flipped"], pair, documents)),
                "mean_bound": 2 * float(pair["share"].mean()), "bound": 2 / (1 + tau),
                **_named("excess", _mean(pair["flipped"] - 2 * pair["share"], pair, documents)),
                **_named("all_rate", _share(entered["flipped"], entered, documents)), **_named("wrong", wrong),
                "model_wrong": float(pair["share"].mean()), "markov": (1 + tau) * wrong.value,
                "best_kappa": math.sqrt(2 / p) - 1, "corollary": 2 * math.sqrt(2 * wrong.value),
                "labels": 2 * wrong.value, "few": max(pair["flipped"].sum(), 2 * pair["share"].sum()) < FEW,
            })  # fmt: skip
    return pd.DataFrame(out)


def martingale(measured: Measured) -> pd.DataFrame:
    """Per bin of the ratio at the commit: does the share drift, and is it right?

    A bin [tau, next) holds the commits at tau whose ratio was below the next threshold. Columns: model, task, low,
    high (of the bin), n, flips, rate, mean_bound, drift (mean of q at the end minus q at the commit; 0 for a fair
    game), error (mean of 1{x = u} minus q at the commit; 0 for a calibrated model), each with limits; few
    (whether fewer than ``FEW`` true runners-up were seen and expected, so that no bootstrap can give limits).
    """
    out = []
    for frame, meta in measured:
        rows, edges = commits(frame, meta), [*meta["thresholds"], math.inf]
        rows = rows[rows["paired"] & ~rows["padding"]]
        for t, pair in rows.groupby("last"):
            n = meta["documents"]
            out.append({
                "model": meta["model"], "task": meta["task"], "bin_low": edges[t], "bin_high": edges[t + 1],
                "n": len(pair), "flips": int(pair["flipped"].sum()), "rate": float(pair["flipped"].mean()),
                "mean_bound": 2 * float(pair["share"].mean()),
                **_named("drift", _mean(pair["end_share"] - pair["share"], pair, n)),
                **_named("error", _mean(pair["wrong"] - pair["share"], pair, n)),
                "few": max(pair["wrong"].sum(), pair["share"].sum()) < FEW,
            })  # fmt: skip
    return pd.DataFrame(out)


def cut(measured: Measured, models: Iterable[str], tasks: Iterable[str], limit: int | None = None) -> Measured:
    """The parts of some models and tasks, in that order, on their first ``limit`` documents."""
    found = {(meta["model"], meta["task"]): (frame, meta) for frame, meta in measured}
    out = []
    for model in models:
        for task in tasks:
            if (Path(model).name, task) in found:
                frame, meta = found[Path(model).name, task]
                n = min(limit or meta["documents"], meta["documents"])
                out.append((frame[frame["document"] < n], meta | {"documents": n, "positions": sum(meta["held"][:n])}))
    return out


def shown(p: SimpleNamespace) -> list[str]:
    """The models of a notebook's parameters that are of its families."""
    return [model for model in p.models if family({"model": model}) in p.families]


def load(p: SimpleNamespace) -> Measured:
    """What a notebook shows of true text: recorded, or measured here and kept in the store.

    Raises:
        NotebookError: nothing is recorded.
    """
    tasks = [task for task in p.tasks if task in SPLITS]
    if not tasks:
        return []
    if p.source == "live":
        found = list(live(shown(p), tasks, p.limit, p.seed, p.device, p.dtype))
        write(found, (p.store or home() / "results" / "store") / "flip_bound")
    else:
        found = read((p.store or home() / "data" / "records") / "flip_bound")
    return cut(found, shown(p), tasks, p.limit)
