"""The ablations as figures: differences of scores and speed against a setting, the paper's values faint beside ours."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from jot import stats
from jot.analysis import plots
from jot.analysis.ablations import ABLATIONS, FULL, Ablation, short_task
from jot.analysis.ablations_view import MISSING, REFERENCE, tick
from jot.analysis.render import counts, tiers

FLOOR = -22  # points; the paper's deepest losses are marked at the edge


def draw(
    ours: Mapping[str, pd.DataFrame], paper: Mapping[str, pd.DataFrame], exits: pd.DataFrame, heads: pd.DataFrame
) -> dict[str, Figure]:
    """Every figure that has something to show, by name."""
    drawn = {name: figure(ABLATIONS[name], frame, paper[name]) for name, frame in ours.items()
             if len(frame) and (frame["n"] > 0).any()}  # fmt: skip
    return drawn | ({"exits": exits_and_precision(exits, heads)} if len(exits) else {})


def figure(ablation: Ablation, frame: pd.DataFrame, paper: pd.DataFrame) -> Figure:
    """Per task, difference of scores above and speed below, against the setting; the paper's values faint."""
    settings = [(i, s) for i, s in enumerate(ablation.settings)
                if s != FULL and (ablation.id != "tau_min" or s["tau_min"] > 1)]  # fmt: skip
    place = {i: x for x, (i, _) in enumerate(settings)}
    tasks = list(dict.fromkeys(frame["task"])) if len(frame) else []
    measure = "speedup" if ablation.id in ("threshold", "llada") else "ratio"
    with plots.style():
        figure = Figure(figsize=(1.2 + 2.05 * max(2, len(tasks)), 4.9), layout="constrained")
        axes = figure.subplots(2, max(1, len(tasks)), squeeze=False, sharex=True)
        for column, task in enumerate(tasks):
            for axis, name in zip(axes[:, column], ("difference", measure), strict=True):
                _panel(axis, frame[frame["task"] == task], paper, task, name, place)
            n = frame[(frame["task"] == task) & (frame["n"] > 0)]
            axes[0, column].set_title(f"{task}\n{counts(n).split(task)[0].strip() if len(n) else MISSING}", loc="left")
            ticks = [tick(ablation, s) for _, s in settings]
            axes[1, column].set_xticks(range(len(settings)), ticks, rotation=90 if len(ablation.keys) > 1 else 0)
        reference, beside = REFERENCE[ablation.id]
        axes[0, 0].set_ylabel("Score difference (points)")
        axes[1, 0].set_ylabel("Step speedup (×, log scale)" if measure == "speedup" else "Ratio of step speedups")
        names = ", ".join({"tau_max": "τ", "gamma": "γ", "window": "D"}[k] for k in ablation.keys if k != "tau_min")
        for axis in axes[1]:
            axis.set_xlabel(names)
        figure.legend(handles=_legend(frame, paper), loc="outside lower center", ncols=2 if len(tasks) < 3 else 4)
        shown = tiers(frame["model"]) if len(frame) else ""
        below = "speedup" if measure == "speedup" else f"speedup over that of {beside}"
        figure.suptitle(
            f"{ablation.title}: {shown}. Exploratory.\nAbove: score against {reference}\n"
            f"(Tango 95 %; dotted: {stats.MARGIN:g} points); below: {below} (bootstrap 95 %)", fontsize=8.5,
        )  # fmt: skip
    return figure


def _panel(axis, ours: pd.DataFrame, paper: pd.DataFrame, task: str, name: str, place: Mapping[int, int]) -> None:
    axis.axhline(1 if name != "difference" else 0, color=plots.COLORS["gray"], linewidth=0.8, zorder=0)
    if name == "difference":
        for margin in (-stats.MARGIN, stats.MARGIN):
            axis.axhline(margin, color=plots.COLORS["gray"], linestyle=":", linewidth=0.8, zorder=0)
    models = list(dict.fromkeys(ours["model"]))
    for index, model in enumerate(models):
        rows = ours[(ours["model"] == model) & ours["row"].isin(list(place)) & (ours["n"] > 0)]
        color, shift = plots.FAMILY_COLOR[rows["family"].iloc[0] if len(rows) else "dream"], (index - 0.3) * 0.24
        shift = shift if len(models) > 1 else -0.1
        known = rows[rows[name].notna()]
        at = known["row"].map(place) + shift
        spread = [
            (known[name] - known[f"{name}_low"]).clip(lower=0),
            (known[f"{name}_high"] - known[name]).clip(lower=0),
        ]
        look = plots.LOOKS["jot"].points(color)
        axis.errorbar(at, known[name], yerr=spread, linestyle="", markersize=3, elinewidth=1, zorder=3, **look)
        own = rows[~rows["compared" if name == "difference" else "divided"]] if name != "speedup" else rows.iloc[:0]
        axis.plot(own["row"].map(place) + shift, [float(name != "difference")] * len(own), linestyle="", markersize=3,
                  zorder=3, **look | {"markerfacecolor": "white"})  # fmt: skip
    theirs = paper[(paper["task"] == short_task(task)) & paper["row"].isin(list(place))] if len(paper) else paper
    theirs = theirs[theirs[name].notna()] if len(theirs) else theirs
    for family, rows in theirs.groupby("family") if len(theirs) else ():
        color, x = plots.FAMILY_COLOR[family], rows["row"].map(place) + 0.2
        low = rows[name] < FLOOR if name == "difference" else rows[name] < 0
        look = plots.LOOKS["jot"].points(color) | {"linestyle": "", "alpha": 0.35, "zorder": 1}
        axis.plot(x[~low], rows[name][~low], **look, markersize=4)
        for at, value in zip(x[low], rows[name][low], strict=True):
            axis.plot(at, FLOOR, **look | {"marker": r"$\downarrow$"}, markersize=6)  # it lies below the axis
            axis.annotate(f"{value:+.1f}", (at, FLOOR), xytext=(5, -2), textcoords="offset points", fontsize=6.5,
                          color=plots.COLORS["gray"])  # fmt: skip
    axis.set_xlim(-0.6, len(place) - 0.4)
    axis.grid(axis="x", visible=False)
    if name == "speedup":
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        axis.set_yticks([t for t in (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40) if low <= t <= high])
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        if name == "ratio":
            low, high = axis.get_ylim()
            axis.set_ylim(min(low, 0.95), max(high, 1.05))
        axis.yaxis.set_major_locator(MaxNLocator(6))


def _legend(frame: pd.DataFrame, paper: pd.DataFrame) -> list[Line2D]:
    pairs = frame[["model", "family"]].drop_duplicates().itertuples(index=False) if len(frame) else ()
    jot = plots.LOOKS["jot"]
    handles = [Line2D([], [], linestyle="", label=m, **jot.points(plots.FAMILY_COLOR[f])) for m, f in pairs]
    pairs = paper[["model", "family"]].drop_duplicates().itertuples(index=False) if len(paper) else ()
    return handles + [
        Line2D([], [], linestyle="", alpha=0.35, label=f"published, {m} (real benchmark)",
               **jot.points(plots.FAMILY_COLOR[f])) for m, f in pairs
    ]  # fmt: skip


def exits_and_precision(exits: pd.DataFrame, heads: pd.DataFrame) -> Figure:
    """Differences of scores and steps: `after_exit` against `or`, bfloat16 against float32."""
    panels = (
        (exits, "difference", "after_exit minus or:\nscore (points)"),
        (exits, "steps", "after_exit minus or:\nsteps a document"),
        (heads, "difference", "bfloat16 minus float32:\nscore (points)"),
    )
    with plots.style():
        figure = Figure(figsize=(9.4, 3.1), layout="constrained")
        for axis, (frame, name, title) in zip(figure.subplots(1, 3), panels, strict=True):
            rows = frame[frame[name].notna()] if len(frame) else frame
            methods = rows["method"] if "method" in rows else pd.Series("", index=rows.index)
            axis.axvline(0, color=plots.COLORS["gray"], linewidth=0.8, zorder=0)
            for y, ((_, row), method) in enumerate(zip(rows.iterrows(), methods, strict=True)):
                look = plots.LOOKS[method or "jot"].points(_color(row["model"]))
                axis.errorbar(row[name], -y, xerr=plots._spread(row, name), linestyle="", markersize=4, **look)
            names = [f"{short_task(t)}{' full' if m == 'full' else ' JoT' if m else ''}"
                     for t, m in zip(rows["task"], methods, strict=True)]  # fmt: skip
            axis.set_yticks([-y for y in range(len(rows))], names)
            axis.set_title(title, loc="left")
            axis.grid(axis="y", visible=False)
        models = dict.fromkeys(exits["model"]) if len(exits) else ()
        handles = [Line2D([], [], color=_color(m), label=m) for m in models]
        for method, name in (("jot", "JoT"), ("full", "full decoding")):
            look = plots.LOOKS[method].points(plots.COLORS["black"])
            handles.append(Line2D([], [], linestyle="", label=name, **look))
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
        shown = tiers(models)
        figure.suptitle(
            f"Order of exits and precision of the ranking: {shown}. Exploratory.\n"
            f"{counts(exits) if len(exits) else ''}.\nBars: 95 % intervals (Tango; bootstrap over documents for steps)",
            fontsize=8.5,
        )  # fmt: skip
    return figure


def _color(model: str) -> str:
    return plots.FAMILY_COLOR["llada" if "llada" in model.lower() else "dream"]
