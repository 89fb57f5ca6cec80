"""The frames of ``dynamics`` as tables, sentences and two figures: margins per step, and a canvas filling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from jot import stats
from jot.analysis import dynamics, plots, render
from jot.analysis.dynamics import EDGE, EXITED, SCHEDULED, Traces
from jot.analysis.spelling import of
from jot.paper.show import Note, Table

TAUS = LinearSegmentedColormap.from_list("taus", ["#8FD9BF", plots.LOOKS["jot"].color, "#00382A"])  # JoT's green
STEP_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
COLUMNS = 16  # positions a row of the strip
STEPS = LinearSegmentedColormap.from_list("steps", colormaps["viridis"](np.linspace(0.22, 1, 256)))  # no near-black
BAND = "95 % percentile bootstrap over documents"


def _label(tau: float | None) -> str:
    return "Full decoding" if tau is None or math.isnan(tau) else f"JoT, τ = {tau:g}"


def _interval(row: pd.Series, name: str, digits: int, sign: str = "") -> str:
    return of(row, name, digits, sign, comma=",\u00a0")


# --- tables -------------------------------------------------------------------------------------------------


def filling(frame: pd.DataFrame) -> Table:
    """Who commits, how many a step, and how many at the edge of the threshold."""
    rows = [
        {
            "Model": r["model"],
            "Run": _label(r["tau"]),
            "n": f"{r['n']:,}",
            "Score, %": f"{r['score']:.1f}",
            "Steps": _interval(r, "steps", 2),
            "Commits a step": _interval(r, "per_step", 1),
            "By exit alone, %": _interval(r, "exit", 2),
            "Exit and schedule, %": _interval(r, "both", 2),
            "Schedule alone, %": _interval(r, "schedule", 2),
            "At the edge": "" if math.isnan(r["tau"]) else f"{r['at_edge']} of {r['commits']:,}",
            "At the edge, %": _interval(r, "edge", 4),
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"How canvases are filled. {render.scope(frame)}, traced. Shares are of all commits, the canvas tail "
        f"included; at the edge: margin within {EDGE:g} nats of ln τ at that position. All intervals: {BAND}, "
        f"{stats.N_BOOT:,} resamples (degenerate at zero counts).",
    )


def declines(frame: pd.DataFrame) -> Table | Note:
    """Whether mean margin falls over the steps of full decoding."""
    if frame.empty:
        return Note("Full decoding is not among the traced runs shown.")
    rows = [
        {
            "Model": r["model"],
            "n": f"{r['n']:,}",
            "Spearman's rho, mean": _interval(r, "rho", 2, "+"),
            "Falling, % of documents": f"{r['falling']:.1f}",
            "In the first block, mean rho": _interval(r, "block", 2, "+") or "whole canvas",
            "Margin at step 1, nats": f"{r['first']:.1f}",
            "Middle half": f"{r['middle']:.1f}",
            "Last step": f"{r['last']:.1f}",
            "Highest at step": r["peak"],
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"Mean margin over the steps of full decoding. {render.scope(frame)}, traced. Rho of step and mean margin "
        f"within a document, averaged over documents, {BAND}; falling: rho below zero. A model that decodes in "
        "blocks reads the masks of one block at a time, so its mean margin jumps where a block begins; the first "
        "block alone is shown beside it.",
    )


def documents(traces: Traces, models: Sequence[str], count: int) -> Table | Note:
    """The single documents of the figures, and what each run made of them."""
    rows = []
    for model in models:
        for number, doc_id in enumerate(dynamics.chosen(traces, model, count), 1):
            for (name, tau), cell in traces.items():
                if name == model:
                    row = dynamics.sample(cell, doc_id)
                    rows.append(
                        {
                            "Model": model,
                            "Document": f"{number}\n{doc_id}",
                            "Run": _label(tau),
                            "Steps": row["steps"],
                            "Right": "yes" if row["score"] > 0.5 else "no",
                            "Text": row["text"].strip(),
                        }
                    )
    if not rows:
        return Note("No single document is shown: full decoding is not among the traced runs, or gets none right.")
    first, tier = next(iter(traces.values())), render.tier(models[0])
    return Table(
        pd.DataFrame(rows),
        f"Single documents: the first {count} of the fixed order that full decoding gets right, a rule stated before "
        f"they were looked at. {tier[:1].upper()}{tier[1:]}; n = {count} of {first.n:,} traced documents a model. "
        "Anecdotes, as in the paper's figures.",
    )


def verdict(traces: Traces, frame: pd.DataFrame, filled: pd.DataFrame) -> Note:
    """The plan's criterion, then what fills the canvas."""
    lines = [f"**Verdict.** {render.scope(filled)}, traced. Seen or not seen at this scale only.", ""]
    full = {model: cell for (model, tau), cell in traces.items() if tau is None}
    status, shown = dynamics.judge(full)
    lines.append(
        f"- Under full decoding mean confidence falls over the steps, in both models: **{status}** "
        f"({shown or 'full decoding not among the runs shown'})"
    )
    for model, group in filled.dropna(subset="tau").groupby("model", sort=False):
        low, high = group.loc[group["tau"].idxmin()], group.loc[group["tau"].idxmax()]
        lines.append(
            f"- {model}: from τ = {low['tau']:g} to τ = {high['tau']:g} a step commits {low['per_step']:.1f} to "
            f"{high['per_step']:.1f} tokens; the exit rule alone commits {low['exit']:.1f} to {high['exit']:.1f} % "
            f"of all; {int(group['at_edge'].sum())} of {int(group['commits'].sum()):,} commits lie at the edge of "
            "the threshold"
        )
    for r in frame.to_dict("records"):
        lines.append(
            f"- {r['model']}, full decoding: mean margin {r['first']:.1f} nats at the first step, {r['middle']:.1f} "
            f"over the middle half of the steps, {r['last']:.1f} at the last"
        )
    return Note("\n".join(lines))


def checks(traces: Traces) -> Table:
    """What the traces must obey, each a statement that may fail."""
    wrong = dict.fromkeys(("all", "steps", "exits", "plan", "masks", "one"), 0)
    outputs = commits = planned = 0
    for (_, tau), cell in traces.items():
        for row in cell.recorded.frame.itertuples():
            outputs += 1
            rule, step = np.asarray(row.trace_rule), np.asarray(row.trace_step)
            gap = np.asarray(row.trace_margin, float) - np.asarray(row.trace_threshold, float)
            commits += len(rule)
            wrong["all"] += int((rule == 0).any())
            wrong["steps"] += int(step.max() + 1 != row.steps or len(row.trace_mean_margin) != row.steps)
            wrong["exits"] += int((gap[rule & EXITED > 0] < -EDGE).sum())
            wrong["plan"] += int((gap[rule == SCHEDULED] > EDGE).sum())
            counts = np.bincount(step, minlength=row.steps)
            wrong["masks"] += int((np.asarray(row.trace_masked) != len(step) - counts.cumsum() + counts).any())
            if tau is None:
                planned += 1
                wrong["one"] += int((rule != SCHEDULED).any() or (counts != 1).any())
    rows = [
        ("Every position was committed, once", wrong["all"] == 0, f"{outputs:,} outputs"),
        ("The last commit falls in the last step", wrong["steps"] == 0, f"{outputs:,} outputs"),
        ("Masks fall by the commits of each step", wrong["masks"] == 0, f"{outputs:,} outputs"),
        ("Exits reach the threshold", wrong["exits"] == 0, f"{commits:,} commits"),
        ("What the schedule alone commits stays below it", wrong["plan"] == 0, f"{commits:,} commits"),
    ]
    if planned:
        rows.append(
            ("Full decoding commits one position a step, by schedule", wrong["one"] == 0, f"{planned:,} outputs")
        )
    return render.checks(pd.DataFrame(rows, columns=["statement", "holds", "detail"]))


# --- margins per step -----------------------------------------------------------------------------------------


def _line(tau: float | None, taus: Sequence[float]) -> dict:
    if tau is None or math.isnan(tau):
        return {"color": plots.LOOKS["full"].color, "linestyle": plots.LOOKS["full"].line, "marker": ""}
    at = list(taus).index(tau) / max(1, len(taus) - 1)
    return {"color": TAUS(at), "linestyle": "-", "marker": plots.LOOKS["jot"].marker}


def margins(traces: Traces, frame: pd.DataFrame, count: int) -> Figure:
    """Mean margin per step, averaged over documents with its band, then single documents; both axes, nats and ratio.

    Args:
        frame: from ``dynamics.per_step``.
        count: single documents a model.
    """
    models = list(dict.fromkeys(model for model, _ in traces))
    taus = sorted({tau for _, tau in traces if tau is not None})
    with plots.style():
        made = Figure(figsize=(2.9 * (1 + count) + 0.6, 2.5 * len(models) + 0.7), layout="constrained")
        grid = made.subplots(len(models), 1 + count, squeeze=False, sharex=True, sharey="row")
        for axes, model in zip(grid, models, strict=True):
            n = max(cell.n for (name, _), cell in traces.items() if name == model)
            axes[0].set_title(f"{model}: mean of {n:,} documents", loc="left")
            for tau, part in frame[frame["model"] == model].groupby("tau", sort=False, dropna=False):
                style = _line(tau, taus)
                axes[0].plot(part["step"], part["mean"], **style, markersize=2.5)
                axes[0].fill_between(part["step"], part["low"], part["high"], color=style["color"], alpha=0.2, lw=0)
            ids = dynamics.chosen(traces, model, count)
            for axis, doc_id in zip(axes[1:], ids, strict=False):
                axis.set_title(f"one document: {doc_id.rpartition('/')[2]}", loc="left")
                for (name, tau), cell in traces.items():
                    if name == model:
                        values = np.asarray(dynamics.sample(cell, doc_id)["trace_mean_margin"], float)
                        axis.plot(np.arange(1, len(values) + 1), values, **_line(tau, taus), markersize=2.5)
            for axis in axes[1 + len(ids) :]:
                axis.set_visible(False)
            axes[0].set_ylim(bottom=0)
            axes[0].set_ylabel("Mean margin (nats)")
            _ratio_axis(axes[len(ids)])
        for axis in grid[-1]:
            axis.set_xlabel("Denoising step (log scale)")
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(FixedLocator(STEP_TICKS))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        handles = [Line2D([], [], label=_label(tau), **_line(tau, taus), markersize=2.5) for tau in (None, *taus)]
        made.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        tiers = render.tiers(models)
        made.suptitle(
            f"Mean margin of the masks that a step reads: {tiers}. Bands: {BAND},\nover documents still running "
            f"(drawn while at least {dynamics.SHOWN:.0%} are). Full decoding as in the paper: dashed",
            fontsize=8.5,
        )
    return made


def _ratio_axis(axis) -> None:
    """The same margin as the paper's ratio: e to the margin, at powers of ten."""
    right = axis.secondary_yaxis("right")
    top = axis.get_ylim()[1] / math.log(10)
    powers = np.arange(0, math.floor(top) + 1, 2 if top > 4 else 1)
    right.set_yticks([power * math.log(10) for power in powers])
    right.set_yticklabels([rf"$10^{{{power}}}$" for power in powers])
    right.set_ylabel("Ratio, top-1 over top-2 (e to the margin)")


# --- a canvas filling -----------------------------------------------------------------------------------------


def strips(traces: Traces, taus: Mapping[str, float], texts: Mapping[str, Mapping[int, str]], count: int) -> Figure:
    """One canvas a model, one cell a position, colored by the step of its commit, under full decoding and JoT.

    The canvas is that of ``dynamics.slowest``.

    Args:
        taus: threshold of the JoT strip by model.
        texts: token texts by model.
        count: single documents a model, among which the canvas is chosen.
    """
    panels = []
    for model in dict.fromkeys(name for name, _ in traces):
        doc_id = dynamics.slowest(traces, model, taus.get(model), count)
        shown = [tau for tau in (None, taus.get(model)) if doc_id and (model, tau) in traces]
        panels += [(model, tau, doc_id, dynamics.sample(traces[model, tau], doc_id)) for tau in dict.fromkeys(shown)]
    with plots.style():
        heights = [-(-len(row["generated"]) // COLUMNS) for *_, row in panels] or [1]
        made = Figure(figsize=(8.2, 0.245 * sum(heights) + 0.36 * len(heights) + 1.2), layout="constrained")
        axes = made.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        norm = LogNorm(1, max([2, *(int(row["steps"]) for *_, row in panels)]))
        for axis, (model, tau, doc_id, row) in zip(axes, panels, strict=False):
            _strip(axis, dynamics.strip(row, texts.get(model, {})), norm)
            right = "right" if row["score"] > 0.5 else "wrong"
            axis.set_title(f"{model}, {_label(tau)}: steps {row['steps']}, answer {right} ({doc_id})", loc="left")
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        bar = made.colorbar(ScalarMappable(norm, STEPS), ax=list(axes), shrink=0.6, aspect=40, pad=0.01)
        ticks = [tick for tick in STEP_TICKS if tick <= norm.vmax]
        bar.set_ticks(ticks, labels=[str(tick) for tick in ticks])
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.set_label("Step of the commit (log scale)")
        edges = (("by the schedule alone", "-"), ("by schedule and exit", ":"), ("by exit alone", ""))
        handles = [
            Patch(facecolor="#CCCCCC", edgecolor="black" if style else "none", linestyle=style or "-", label=label)
            for label, style in edges
        ]
        made.legend(handles=handles, loc="outside lower center", ncols=3)
        tiers = render.tiers(model for model, *_ in panels)
        n = max((cell.n for cell in traces.values()), default=0)
        made.suptitle(
            f"The step that committed each position: {tiers}. One canvas a model, of {n:,} traced documents",
            fontsize=8.5,
        )
    return made


def _strip(axis, frame: pd.DataFrame, norm: LogNorm) -> None:
    for at, (step, rule, text) in enumerate(frame.itertuples(index=False)):
        x, y = at % COLUMNS, at // COLUMNS
        color = STEPS(norm(step))
        ink = "white" if np.dot(color[:3], (0.299, 0.587, 0.114)) < 0.5 else "black"
        axis.add_patch(Rectangle((x + 0.03, y + 0.04), 0.94, 0.92, facecolor=color, edgecolor="none"))
        if rule & SCHEDULED:
            style = "-" if rule == SCHEDULED else (0, (1, 1))
            frame_at = Rectangle((x + 0.09, y + 0.13), 0.82, 0.74, fill=False, edgecolor=ink, lw=1, linestyle=style)
            axis.add_patch(frame_at)
        shown = _short(text)
        size = 10 if shown == "·" else 6.4
        axis.text(x + 0.5, y + 0.52, shown, ha="center", va="center", fontsize=size, color=ink, parse_math=False)
    axis.set_xlim(0, COLUMNS)
    axis.set_ylim(-(-len(frame) // COLUMNS), 0)
    axis.set_axis_off()


def _short(text: str) -> str:
    """A token in a cell: the end mark as a dot, a bare space visible, long words cut."""
    if text.startswith("<|"):
        return "·"
    bare = text.strip()
    if not bare:
        return "␣" if text else ""
    return bare if len(bare) <= 7 else bare[:6] + "…"
