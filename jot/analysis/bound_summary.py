"""Figures, verdict and checks of ``07_flip_bound``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter
from scipy import stats as st

from jot import stats
from jot.analysis import bound_decoded, bound_view, render
from jot.analysis.bound import Process
from jot.analysis.bound_pocket import Measured
from jot.analysis.cells import DEFAULT_TAU, Cell, Records, family
from jot.analysis.plots import COLORS, FAMILY_COLOR, style
from jot.paper.show import Note

PROCESS_COLOR = {"mixture": COLORS["green"], "chain": COLORS["purple"], "attaining": COLORS["black"]}
PROCESS_MARKER = {"mixture": "o", "chain": "s", "attaining": "D"}
MODEL_MARKER = {"dream": "o", "llada": "s"}


def _color(model: str) -> str:
    return FAMILY_COLOR[family({"model": model})]


def _log_axes(axis: Axes, ticks: Sequence[float], low: float) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(list(ticks))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="x", which="minor", length=0)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_ylim(bottom=low)


def letters(layer: str, count: int) -> list[str]:
    """Panels of a layer, each with a letter of its own: ``b``, or ``b1``, ``b2`` where there are several."""
    return [layer] if count == 1 else [f"{layer}{i}" for i in range(1, count + 1)]


def _series(axis: Axes, frame: pd.DataFrame, color: str, marker: str, shift: float) -> None:
    """Observed rates in percent with intervals; where nothing flipped, an arrow down from the upper limit."""
    for _, r in frame.iterrows():
        at = r["tau"] * shift
        value, low, high = (100 * r[k] for k in ("rate", "low", "high"))
        if r["flips"]:
            spread = [[value - low], [high - value]]
            axis.errorbar(at, value, yerr=spread, fmt=marker, color=color, elinewidth=0.9, markersize=4, zorder=3)
        else:
            down = [[high * 0.5], [0]]
            axis.errorbar(at, high, yerr=down, uplims=True, fmt="_", color=color, elinewidth=0.9, zorder=3)
    axis.plot(frame["tau"] * shift, 100 * frame["mean_bound"], ":", color=color, linewidth=1.1, zorder=2)


def flips(exact: Mapping[str, pd.DataFrame], text: pd.DataFrame) -> Figure:
    """Observed flip rate against the threshold beside the bounds: exact processes, then each task on true text."""
    tasks = list(dict.fromkeys(text["task"])) if len(text) else []
    taus = sorted(set().union(*(frame["tau"] for frame in [*exact.values(), *([text] if len(text) else [])])))
    least = 0.004
    with style():
        figure = Figure(figsize=(max(7.4, 2.6 * (1 + len(tasks)) + 0.3), 3.7), layout="constrained")
        axes = figure.subplots(1, 1 + len(tasks), sharey=True, squeeze=False)[0]
        curve = np.geomspace(min(taus), max(taus), 60)
        for axis in axes:
            axis.plot(curve, 200 / (1 + curve), "-", color=COLORS["gray"], linewidth=1.4, zorder=1)
            _log_axes(axis, taus, least)
            axis.set_xlabel("Threshold τ (log scale)")
        for i, (name, frame) in enumerate(exact.items()):
            _series(axes[0], frame, PROCESS_COLOR[name], PROCESS_MARKER[name], 1.06 ** (i - 1))
        trials = max(frame["n"].max() for frame in exact.values())
        axes[0].set_title(f"a. Exact conditionals\n(n up to {trials:,} a point)", loc="left")
        axes[0].set_ylabel("Flips, % of commits in the pair (log scale)")
        for axis, task, letter in zip(axes[1:], tasks, letters("b", len(tasks)), strict=True):
            part = text[text["task"] == task]
            for i, (model, rows) in enumerate(part.groupby("model", sort=False)):
                named = rows.rename(columns={"rate_low": "low", "rate_high": "high"})
                _series(axis, named, _color(model), MODEL_MARKER[family({"model": model})], 1.06 ** (i - 0.5))
            axis.set_title(f"{letter}. True text, {task}\n({part['documents'].max()} documents a model)", loc="left")
        handles = [Line2D([], [], color=COLORS["gray"], label="bound 2/(1+τ)")]
        handles.append(Line2D([], [], color=COLORS["gray"], linestyle=":", label="bound mean 2q, color of its series"))
        for name in exact:
            look = {"marker": PROCESS_MARKER[name], "color": PROCESS_COLOR[name], "linestyle": ""}
            handles.append(Line2D([], [], **look, label=bound_view.PROCESSES[name]))
        for model in dict.fromkeys(text["model"]) if len(text) else ():
            look = {"marker": MODEL_MARKER[family({"model": model})], "color": _color(model), "linestyle": ""}
            handles.append(Line2D([], [], **look, label=model))
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        tiers = render.tiers(text["model"]) if len(text) else "no model"
        figure.suptitle(
            f"Flips against the threshold ({tiers}). Bars: 95 % intervals (a: Wilson; b: bootstrap over documents);\n"
            "arrows: upper limit where none was seen (a: Wilson; b: exact one-sided)", fontsize=8.5,
        )  # fmt: skip
    return figure


BUDGETS = {
    "by_threshold": ("Σ 2/(1+τᵢ) over exits", COLORS["blue"], "o"),
    "by_ratio": ("Σ 2/(1+rᵢ) over exits", COLORS["green"], "s"),
    "scheduled_ratio": ("Σ 2/(1+rᵢ) over scheduled commits", COLORS["orange"], "^"),
    "differing": ("positions differing from full decoding (description)", COLORS["gray"], "x"),
}


def decoded(frame: pd.DataFrame, seen: pd.DataFrame) -> Figure | None:
    """Budgets and differing positions per document against tau_max, one panel per model and task with a grid."""
    shown = frame[frame["n"] > 0] if len(frame) else frame
    if not len(shown):
        return None
    panels = [key for key, group in shown.groupby(["model", "task"], sort=False) if len(group) > 1] or [
        tuple(shown[["model", "task"]].iloc[0])
    ]
    with style():
        figure = Figure(figsize=(3.4 * max(2, len(panels)) + 0.2, 3.4), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (model, task), letter in zip(axes, panels, letters("c", len(panels)), strict=True):
            rows = shown[(shown["model"] == model) & (shown["task"] == task)]
            mine = seen[(seen["model"] == model) & (seen["task"] == task)] if len(seen) else seen
            axis.plot(rows["tau"], rows["paper"], "--", color=COLORS["vermillion"], zorder=2)
            for name, (_, color, marker) in BUDGETS.items():
                part = mine if name == "differing" else rows
                if not len(part):
                    continue
                spread = [part[name] - part[f"{name}_low"], part[f"{name}_high"] - part[name]]
                line = "" if name == "differing" else "-"
                axis.errorbar(part["tau"], part[name], yerr=np.clip(spread, 0, None), marker=marker, linestyle=line,
                              color=color, elinewidth=0.9, zorder=3)  # fmt: skip
            _log_axes(axis, sorted(rows["tau"]), 1e-3)
            axis.set_title(f"{letter}. {model}, {task} (n = {rows['n'].min():,})", loc="left")
            axis.set_xlabel("τ_max (log scale)")
        axes[0].set_ylabel("Positions per document (log scale)")
        handles = [Line2D([], [], color=COLORS["vermillion"], linestyle="--", label="2L/(1+τ_max), the paper's budget")]
        for name, (label, color, marker) in BUDGETS.items():
            line = "" if name == "differing" else "-"
            handles.append(Line2D([], [], color=color, marker=marker, linestyle=line, label=label))
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
        figure.suptitle(
            f"Reversal budgets of JoT as decoded ({render.tier(panels[0][0])}); "
            "bars: 95 % bootstrap over documents", fontsize=8.5,
        )  # fmt: skip
    return figure


# --- verdict ------------------------------------------------------------------------------------------------


def _listed(rows: pd.DataFrame, kind: str) -> str:
    taus = [f"{r['tau']:g}" for _, r in rows.iterrows() if bound_view.reading(r).strip("*") == kind]
    return f"{kind} at τ = {', '.join(taus)}" if taus else ""


def verdict(
    exact: Mapping[str, pd.DataFrame],
    scaled: pd.DataFrame,
    order: pd.DataFrame,
    text: pd.DataFrame,
    fair: pd.DataFrame,
    budgets: pd.DataFrame,
) -> Note:
    """What the three layers came to, in the words that their numbers allow."""
    exact_rows = pd.concat(exact.values())
    kept = int((exact_rows["exact"] <= exact_rows["bound"] + 1e-12).sum())
    tight = exact["attaining"]
    lines = [
        "**Verdict.** The proposition is a theorem about exact conditionals; whether a network's are exact is a "
        "question for data. Nothing below confirms anything about a 7B or 8B model."
        + (f" Layer b: {bound_view.scope(text)}." if len(text) else ""),
        "",
        f"- a. With exact conditionals the flip rate is within 2/(1+τ) in {kept} of {len(exact_rows)} cases, and the "
        f"process made to attain it does so: exact over bound {tight['exact_ratio'].min():.2f} to "
        f"{tight['exact_ratio'].max():.2f}, observed over bound {tight['rate_ratio'].min():.2f} to "
        f"{tight['rate_ratio'].max():.2f}.",
    ]
    over = scaled[scaled["temperature"] < 1]
    broken = over[over["flip"] > over["stopping"]]
    sums = scaled["best_stopping"] + scaled["best_calibration"]
    lines.append(
        f"- a. With an overconfident model on the same process the flip rate exceeds 2/(1+τ) at {len(broken)} of "
        f"{len(over)} thresholds{_of(broken['tau'])}; the corollary's two terms at their best κ cover it in "
        f"{int((scaled['flip'] <= sums + 1e-12).sum())} of {len(scaled)} cases."
    )
    at = order.set_index("decoder")
    lines.append(
        f"- a. Order: one sampled commit at a time, in an order led by confidence, gives the exact joint as far as "
        f"{at.loc['one', 'n']:,} sequences can tell (χ² p = {render.pvalue(at.loc['one', 'p'])}, total variation of "
        f"its law {bound_view.percent(at.loc['one', 'exact'])} %); parallel argmax commits are off by "
        f"{bound_view.percent(at.loc['exits', 'exact'])} % in total variation."
    )
    for (model, task), rows in text.groupby(["model", "task"], sort=False) if len(text) else ():
        found = [_listed(rows, kind) for kind in ("above", "not told apart", "below", "too few to tell", "none seen")]
        lines.append(f"- b. {model}, {task}: flips against mean 2q {'; '.join(filter(None, found))}.")
    if len(text):
        above = text.apply(bound_view.reading, axis=1).eq("**above**")
        lines.append(
            f"- b. {int(above.sum())} of {len(text)} rates lie above their bound by interval: that speaks "
            "against these models' calibration or consistency on true text, never against the theorem."
            if above.any()
            else f"- b. No rate lies above its bound by interval ({int((text['excess'] > 0).sum())} of {len(text)} "
            "point estimates do). That proves neither calibration nor consistency: both could fail where flips do not "
            "show it."
        )
        enough = fair[~fair["few"]]
        apart = {name: int((enough[f"{name}_low"] * enough[f"{name}_high"] > 0).sum()) for name in ("drift", "error")}
        lines.append(
            f"- b. Over {len(enough)} bins of the ratio with events enough, the interval of the drift of q excludes 0 "
            f"in {apart['drift']} and that of its calibration error in {apart['error']}; about "
            f"{stats.ALPHA * len(enough):.0f} would by chance."
        )
    for _, r in budgets[budgets["n"] > 0].iterrows() if len(budgets) else ():
        if r["tau"] == DEFAULT_TAU[family({"model": r["model"]})]:
            covers = "does not cover" if r["by_threshold"] > r["paper"] else "covers"
            lines.append(
                f"- c. {r['model']}, {r['task']}, τ_max = {r['tau']:g} (default, n = {r['n']:,}): "
                f"Σ 2/(1+τᵢ) = {r['by_threshold']:.2f}, Σ 2/(1+rᵢ) = {r['by_ratio']:.2f} a document. 2L/(1+τ_max) = "
                f"{r['paper']:.2f} {covers} the first: τᵢ goes down to {r['lowest']:.3g}, and at τᵢ = 1 the bound is 1."
            )
    return Note("\n".join(lines))


def _of(taus: pd.Series) -> str:
    return f" (τ = {', '.join(f'{t:g}' for t in taus)})" if len(taus) else ""


# --- checks -------------------------------------------------------------------------------------------------


def _brute_force(process: Process, contexts: int = 200, seed: int = 0) -> float:
    """Largest gap between the posteriors and sums over all sequences that fit a context, over random contexts."""
    rng, worst = np.random.default_rng(seed), 0.0
    for tokens in process.draw(contexts, rng):
        hidden = rng.random(process.length) < rng.random()
        fits = ((process.sequences == tokens) | hidden).all(1)
        context = np.where(hidden, process.mask, tokens)[None]
        for i in range(process.length):
            counted = np.bincount(process.sequences[fits, i], process.joint[fits], minlength=process.size)
            worst = max(worst, float(abs(counted / counted.sum() - process.posterior(context)[0, i]).max()))
    return worst


def _gates(records: Records, models: Sequence[str], tasks: Sequence[str], seed: int) -> tuple[int, int]:
    """Commits of the decoded cells whose rule contradicts their margin and threshold, and all commits."""
    wrong = total = 0
    for point in bound_decoded.points(models, tasks):
        cell = bound_decoded.found(records, point, seed) if point.method == "jot" else None
        trace = bound_decoded.trace(cell) if isinstance(cell, Cell) else None
        if trace is not None:
            wrong += int(((trace.ratio >= trace.threshold) != trace.exited).sum())
            total += trace.exited.size
    return wrong, total


def checks(
    processes: Mapping[str, Process],
    exact: Mapping[str, pd.DataFrame],
    scaled: pd.DataFrame,
    measured: Measured,
    records: Records,
    models: Sequence[str],
    tasks: Sequence[str],
    seed: int = 0,
) -> pd.DataFrame:
    """What the tables rest on, each as a statement, whether it holds, and the numbers behind it."""
    gap = max(_brute_force(process) for process in processes.values())
    rows = pd.concat(exact.values())
    held = int(((rows["low"] <= rows["exact"] + 1e-12) & (rows["exact"] <= rows["high"] + 1e-12)).sum())
    sums = scaled["best_stopping"] + scaled["best_calibration"]
    out = [
        ("a. Posteriors equal sums over all sequences", gap < 1e-9, f"largest gap {gap:.0e}, 200 contexts a process"),
        ("a. The true share is a martingale: its exact drift is zero", bool((rows["exact_drift"].abs() < 1e-9).all()),
         f"{len(rows)} sums over all sequences and orders"),
        ("a. Wilson's intervals hold the exact rate as often as they should (binomial tail above 1 %)",
         bool(st.binom.cdf(held, len(rows), 1 - stats.ALPHA) > 0.01),
         f"{held} of {len(rows)}; the thresholds of a process share their trials"),
        ("a. No exact flip rate is above mean 2q*, nor above the corollary's sum",
         bool(((scaled["flip"] <= scaled["mean_bound"] + 1e-12) & (scaled["flip"] <= sums + 1e-12)).all()),
         f"{len(scaled)} pairs of temperature and threshold"),
    ]  # fmt: skip
    for frame, meta in measured:
        bars = np.log(meta["thresholds"])
        reached = (frame["margin"] >= bars[frame["last"]] - 1e-3).all()
        after = ((frame["flip"] < 0) | (frame["flip"] > frame["step"])).all()
        spans = frame.sort_values(["document", "position", "first"])
        same = (spans[["document", "position"]].diff() == 0).all(axis=1)
        once = (~same | (spans["first"] > spans["last"].shift(fill_value=0))).all()
        name = f"{meta['model']}, {meta['task']}"
        out.append(
            (
                f"b. {name}: a position commits once a threshold, at a ratio that reaches it, and flips later",
                bool(reached and after and once),
                f"{len(frame):,} commits of {meta['positions']:,} positions; {meta['misfits']} documents passed over",
            )
        )
        weights = {r.meta["config"]["fingerprint"] for r in records.values()
                   if r.meta["config"]["model"] == meta["model"]}  # fmt: skip
        if weights:
            out.append((f"b. {name}: measured with the weights that were decoded", weights == {meta["fingerprint"]},
                        f"{meta['dtype']}, torch {meta['torch']} on {meta['device']}"))  # fmt: skip
    wrong, total = _gates(records, models, tasks, seed)
    if total:
        out.append(("c. Exits are exactly the commits whose margin clears their threshold", wrong == 0,
                    f"{wrong} of {total:,} commits disagree"))  # fmt: skip
    return pd.DataFrame(out, columns=["statement", "holds", "detail"])
