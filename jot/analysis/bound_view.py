"""The tables of layers a and b of ``07_flip_bound``; its figures, verdict and checks are in ``bound_summary``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import render
from jot.analysis.bound_order import FEWEST, READY, STRAY
from jot.analysis.bound_pocket import HELD, Measured
from jot.analysis.bound_rates import FEW
from jot.analysis.spelling import interval
from jot.paper.show import Note, Table

EXACT = "Exact process, no model"
BOOT = f"95 % percentile bootstrap over documents, {stats.N_BOOT:,} resamples"
PROCESSES = {
    "mixture": "Mixture of four chains",
    "chain": "One Markov chain",
    "attaining": "Two tokens, made to attain the bound",
}
NOTHING = "No true text was followed for these models and tasks."
DECODERS = {
    "one": "one at a time, most confident first, sampled",
    "two": "two at a time, most confident first, each sampled",
    "exits": "argmax of all decisive positions in parallel, and one sampled",
}


def percent(x: float, digits: int = 2) -> str:
    """A share in percent; what rounds to zero without being zero says so."""
    if pd.isna(x):
        return ""
    least = 10.0**-digits
    return f"<{least:g}" if 0 < 100 * x < least / 2 else f"{100 * x:.{digits}f}"


def _limits(row: pd.Series, name: str, digits: int = 2, sign: str = "") -> str:
    return interval(*(100 * row[k] for k in (name, f"{name}_low", f"{name}_high")), digits=digits, sign=sign)


# --- layer a ------------------------------------------------------------------------------------------------


def exact_rates(frames: dict[str, pd.DataFrame]) -> Table:
    """Flips of the exact processes; ``frames`` by the names of ``PROCESSES``, from ``bound.rates``."""
    rows = [
        {
            "Process": PROCESSES[name],
            "τ": f"{r['tau']:g}",
            "n": f"{int(r['n']):,}",
            "Outside the pair, %": percent(r["dropped"]),
            "Flips": f"{int(r['flips']):,}",
            "Observed, %": f"{percent(r['rate'])}\n[{percent(r['low'])}, {percent(r['high'])}]",
            "Exact, %": percent(r["exact"]),
            "Mean 2q, %": percent(r["mean_bound"]),
            "2/(1+τ), %": percent(r["bound"]),
            "Exact / mean 2q": f"{r['exact'] / r['mean_bound']:.2f}",
        }
        for name, frame in frames.items()
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"Layer a: flips with exact conditionals. {EXACT}; n independent trials whose true token is in the leading "
        "pair at the commit (the rest is the share outside the pair). One position of a trial is committed the first "
        "time its ratio reaches τ and stays masked while all others are revealed in random order; a flip is a share of "
        f"the runner-up of at least one half at any later time. Observed: {render.WILSON}. Exact: every sequence under "
        "every order, weighted by its probability.",
    )


def corollary(frame: pd.DataFrame, taus: Iterable[float] = (3, 10, 30, 90)) -> Table:
    """The corollary for a model whose conditionals are the true ones at another temperature."""
    kind = {True: "overconfident", False: "underconfident"}
    rows = []
    for _, r in frame[frame["tau"].isin(list(taus))].iterrows():
        t = r["temperature"]
        rows.append({
            "Model": f"temperature {t:g}\n{'calibrated' if t == 1 else kind[t < 1]}",
            "τ": f"{r['tau']:g}",
            "P(flip), %": percent(r["flip"]),
            "2/(1+τ), %": percent(r["stopping"]),
            "Proposition": "holds" if r["flip"] <= r["stopping"] else "**exceeded**",
            "ε at κ = τ, %": percent(r["calibration"]),
            "Best κ": f"{r['best_kappa']:.3g}",
            "2/(1+κ), %": percent(r["best_stopping"]),
            "ε, %": percent(r["best_calibration"]),
            "Corollary, %": percent(r["best_stopping"] + r["best_calibration"]),
            "Mean 2q*, %": percent(r["mean_bound"]),
            "(1+τ) P(x = u), %": percent(min(1.0, r["markov"])),
        })  # fmt: skip
    return Table(
        pd.DataFrame(rows),
        f"Layer a: both terms of the corollary. {EXACT} (the mixture), exact sums over all sequences and orders, so no "
        "interval. The model's conditionals are the true ones to the power 1/temperature; flips and q* are of the "
        "true ones. ε: the calibration term. Best κ: the one with the smallest sum, searched numerically. Mean 2q* "
        "bounds a flip without any κ, by the same inequality. Last column: what labels alone can say about ε at κ = τ, "
        "capped at 100 %.",
    )


def order(frame: pd.DataFrame) -> Table:
    """The order lemma: chi-square and total variation per decoder."""
    rows = [
        {
            "Decoder": DECODERS[r["decoder"]],
            "n": f"{r['n']:,}",
            "χ² p": render.pvalue(r["p"]) if r["p"] else "below 1e-300",
            "Total variation, %": f"{percent(r['variation'])}\n[{percent(r['low'])}, {percent(r['high'])}]",
            "Of exact samples, %": percent(r["null"]),
            "Of the decoder's law, %": percent(r["exact"]),
            "Never produced": f"{r['never']} of {r['cells']}",
        }
        for _, r in frame.iterrows()
    ]
    first = frame.iloc[0]
    return Table(
        pd.DataFrame(rows),
        f"Layer a: the order lemma. {EXACT} (the mixture, four tokens); n decoded sequences against the exact joint. "
        f"χ² over {first['cells']} cells (sequences expected fewer than {FEWEST} times share one); its power at 0.05 "
        f"against a decoder that commits argmaxes in parallel (ratio at least {READY:g}) in {100 * STRAY:g} % of the "
        f"sequences is {first['power']:.2f}. Total variation: 95 % basic bootstrap over sequences; it undoes the "
        "upward bias of a sampled variation and may lie below it; beside it what exact samples of this number show on "
        "average, and the variation of the decoder's own law, summed over its "
        "tree. Where a decoder gives each sequence that it can produce at least its due, the variation is the "
        "probability of those it never produces, the same in every resample.",
    )


# --- layer b ------------------------------------------------------------------------------------------------


def _told(row: pd.Series, name: str) -> str:
    """A difference in points with limits, which a bootstrap cannot give from too few events."""
    return f"{100 * row[name]:+.2f}\ntoo few" if row["few"] or not row["flips"] else _limits(row, name, sign="+")


def reading(row: pd.Series) -> str:
    """What a row's excess over mean 2q says."""
    if not row["flips"]:
        return "none seen"
    if row["few"]:
        return "too few to tell"
    if row["excess_low"] > 0:
        return "**above**"
    return "below" if row["excess_high"] < 0 else "not told apart"


def scope(frame: pd.DataFrame) -> str:
    tiers = render.tiers(frame["model"])
    per = frame.drop_duplicates(["model", "task"])
    parts = [
        f"{g['documents'].max()} documents and {g['positions'].max():,} held positions of {task}"
        for task, g in per.groupby("task", sort=False)
    ]
    return f"{tiers[:1].upper()}{tiers[1:]}; {', '.join(parts)} a model"


def text_rates(frame: pd.DataFrame) -> Table | Note:
    """Flips on true text against the proposition's bounds."""
    if frame.empty:
        return Note(NOTHING)
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "τ": f"{r['tau']:g}",
            "n": f"{r['n']:,}",
            "Outside the pair, %": percent(r["dropped"], 1),
            "Flips": r["flips"],
            "Observed, %": _limits(r, "rate"),
            "Mean 2q, %": percent(r["mean_bound"]),
            "2/(1+τ), %": percent(r["bound"]),
            "Observed minus mean 2q, points": _told(r, "excess"),
            "Observed is": reading(r),
            "All commits, %": _limits(r, "all_rate", 1),
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"Layer b: flips on true text. {scope(frame)}. {100 * HELD:g} % of the response's positions stay masked, the "
        "rest is revealed token by token in random order with its true tokens, and the model is asked after every "
        "reveal. n: positions committed (once, at the first r ≥ τ, leader not EOS) whose true token is the leader or "
        "the runner-up. A flip: the model's share of the runner-up reaches one half at any later time, ties included. "
        f"Mean 2q is mean 2/(1+r) at the commit. Intervals: {BOOT}; where no flip was seen, the upper limit is the "
        f"exact one-sided one (Clopper-Pearson, as if positions were independent). Too few to tell: fewer than {FEW} "
        "flips seen, and fewer allowed by mean 2q. All commits: the rate without the condition on the pair, which the "
        "proposition does not cover.",
    )


def _at_most(p: float, high: float, bound: Callable[[float], float]) -> str:
    """A bound that grows with P(x = u), in percent: at its estimate, and below at its upper limit."""
    return f"{percent(min(1.0, bound(p)))}\nup to {percent(min(1.0, bound(high)))}"


def label_bounds(frame: pd.DataFrame) -> Table | Note:
    """What labels say about the corollary on true text."""
    if frame.empty:
        return Note(NOTHING)
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "τ": f"{r['tau']:g}",
            "n": f"{r['n']:,}",
            "P(x = u), %": _limits(r, "wrong"),
            "The model's q, %": percent(r["model_wrong"]),
            "ε at κ = τ, at most, %": _at_most(r["wrong"], r["wrong_high"], lambda p, tau=r["tau"]: (1 + tau) * p),
            "Best κ": f"{r['best_kappa']:.3g}" if r["wrong"] else "",
            "Corollary, at most, %": _at_most(r["wrong"], r["wrong_high"], lambda p: 2 * (2 * p) ** 0.5),
            "2 P(x = u), %": _at_most(r["wrong"], r["wrong_high"], lambda p: 2 * p),
            "2/(1+τ), %": percent(r["bound"]),
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"Layer b: the corollary's terms as far as labels go. {scope(frame)}; n as above. The true share q* is not "
        "known here; by Markov's inequality ε(τ, κ) ≤ (1+κ) P(x = u, r ≥ τ | pair). Upper bounds only, capped at "
        f"100 %: at the estimate of P(x = u), and small at its upper limit ({BOOT}; exact and one-sided where none was "
        "seen). Best κ makes the corollary's sum of 2/(1+κ) and that bound smallest. 2 P(x = u) bounds a flip of the "
        "true share with no κ at all. Where the interval of P(x = u) lies above the model's q, the model is "
        "overconfident.",
    )


def drift(frame: pd.DataFrame, measured: Measured) -> Table | Note:
    """The martingale check, per bin of the ratio at the commit."""
    if frame.empty:
        return Note(NOTHING)
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "r at the commit": f"{r['bin_low']:g} to {r['bin_high']:g}" if np.isfinite(r["bin_high"])
            else f"{r['bin_low']:g} and above",
            "n": f"{r['n']:,}",
            "Flips, %": percent(r["rate"]),
            "Mean 2q, %": percent(r["mean_bound"]),
            "q at the end minus q, points": _told(r, "drift"),
            "x = u minus q, points": _told(r, "error"),
        }
        for _, r in frame.iterrows()
    ]  # fmt: skip
    tier = render.tier(measured[0][1]["model"])
    n = " and ".join(f"{meta['documents']} of {meta['task']}" for _, meta in measured[: len(measured) // 2] or measured)
    return Table(
        pd.DataFrame(rows),
        f"Layer b: is the model's share a fair game on true text? {tier[:1].upper()}{tier[1:]}; documents: {n} "
        "a model; n commits (leader not EOS, true token in the pair), each at the first time that r reached the bin's "
        f"lower edge. Both means are 0 where the model is consistent and calibrated. Intervals: {BOOT}; none where "
        f"fewer than {FEW} true runners-up were seen and expected (too few).",
    )


def padding(frame: pd.DataFrame) -> Note:
    """One sentence about the commits whose leader is EOS, which the tables leave out."""
    if frame.empty:
        return Note("No commit had EOS as its leader.")
    at = frame[frame["tau"] == frame["tau"].min()]
    parts = [
        f"{r['model']}, {r['task']}: {r['flips']} flips in {r['n']:,} commits (mean 2q: {percent(r['mean_bound'])} %)"
        for _, r in at.iterrows()
    ]
    return Note(
        f"Commits whose leader is EOS, at τ = {at['tau'].iloc[0]:g}, are left out of the tables, which they would "
        f"fill with easy cases. {'; '.join(parts)}."
    )
