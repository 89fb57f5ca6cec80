"""The aggregate trade-off as captioned tables, a figure and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from jot import stats
from jot.analysis import plots
from jot.analysis.pareto import METHODS, VARIANTS, Cloud, Missing, label
from jot.analysis.render import counts, tiers
from jot.analysis.spelling import of
from jot.paper.show import Note, Table

BOOT = (
    f"95 % percentile bootstrap, {stats.N_BOOT:,} resamples of the documents within each task, the same for every "
    "method, independent from task to task"
)
PUBLISHED = "published tier, 7B and 8B models on the real benchmarks, no intervals"
DRAWN_AS = {"klass-skip": "klass-ported", "fastdllm-plain": "fastdllm-nocache"}  # the main table's names of variants


# --- words --------------------------------------------------------------------------------------------------


def look(entry: str) -> plots.Look:
    """How an entry is drawn; a threshold of JoT's grid as JoT."""
    return plots.LOOKS[DRAWN_AS.get(entry, entry.split()[0])]


def left_out(missing: Missing) -> str:
    """The entries that a task lacks, named; empty where none is."""
    parts: dict[tuple[str, str], list[str]] = {}
    for (model, entry), tasks in missing.items():
        parts.setdefault((model, ", ".join(tasks)), []).append(label(entry))
    return "; ".join(f"{model}: {', '.join(names)} (no {tasks})" for (model, tasks), names in parts.items())


def _scope(sizes: pd.DataFrame, missing: Missing) -> str:
    shown = tiers(sizes["model"]) if len(sizes) else "nothing recorded"
    text = f"{shown[:1].upper()}{shown[1:]}" + (f"; {counts(sizes)}" if len(sizes) else "")
    return text + (f". Left out, not recorded: {left_out(missing)}." if missing else ".")


def sizes(found: Mapping) -> pd.DataFrame:
    """Model, task and n of the cells that are shown."""
    rows = [{"model": m, "task": t, "n": cell.n} for (m, _, t), cell in found.items()]
    return pd.DataFrame(rows, columns=["model", "task", "n"]).drop_duplicates(ignore_index=True)


def _share(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.1f}"


# --- tables -------------------------------------------------------------------------------------------------


def points(frame: pd.DataFrame, n: pd.DataFrame, missing: Missing) -> Table:
    """Every point of our panels, with the share of draws in which it lies on the frontier."""
    rows = [
        {
            "Model": r["model"], "Method": label(r["entry"]),
            "Geometric-mean speedup, ×": "1.00" if r["entry"] == "full" else of(r, "speedup", 2),
            "Retention, %": "100" if r["entry"] == "full" else of(r, "retention", 1),
            "On the frontier of the methods, % of draws": _share(r["frontier"]),
            "On the frontier of all points, % of draws": _share(r["frontier_all"]),
            "Fastest method, % of draws": _share(r["fastest"]),
        }
        for _, r in frame.iterrows() if not (r["entry"].startswith("jot ") and pd.isna(r["frontier_all"]))
    ]  # fmt: skip
    caption = (
        f"Aggregate trade-off. {_scope(n, missing)} Exploratory, intervals only. Speedup: geometric mean over tasks of "
        "configured over actual steps (under Fast-dLLM's cache a step is cheaper than a full forward; steps are not "
        f"time). Retention: mean over tasks of the score's ratio to full decoding. {BOOT}. Frontier: no other point "
        "is at least as good in both and better in one; the methods are the rows with an entry in that column. "
        "Variants and thresholds count only among all points."
    )
    return Table(pd.DataFrame(rows), caption)


def against_jot(frame: pd.DataFrame, n: pd.DataFrame, missing: Missing) -> Table | Note:
    """JoT at its default against each other method."""
    if frame.empty:
        return Note("JoT at its default is not among the methods shown.")
    rows = [
        {
            "Model": r["model"], "JoT (default) against": label(r["entry"]),
            "Ratio of speedups": of(r, "ratio", 3), "Difference of retentions, points": of(r, "gap", 1, "+"),
            "Better in both, % of draws": _share(r["dominates"]), "Worse in both, % of draws": _share(r["dominated"]),
        }
        for _, r in frame.iterrows()
    ]  # fmt: skip
    caption = f"JoT at its default against the others. {_scope(n, missing)} Exploratory, intervals only. {BOOT}."
    return Table(pd.DataFrame(rows), caption)


def leave_one_out(frame: pd.DataFrame, n: pd.DataFrame, missing: Missing) -> Table:
    """Geometric means without each task in turn, methods and variants."""
    shown = frame[~frame["entry"].str.startswith("jot ")]
    caption = (
        f"Geometric-mean speedup with each task left out. {_scope(n, missing)} Exploratory, intervals only. {BOOT}. "
        "One task can carry the mean: a long canvas that is mostly padding gives any exit rule a high factor."
    )
    return Table(_wide(shown, lambda r: of(r, "speedup", 2)), caption)


def published(points: pd.DataFrame, left: pd.DataFrame) -> Table:
    """The paper's aggregates, recomputed from its Table 1, both families."""
    table = _wide(left, lambda r: f"{r['speedup']:.2f}")
    at = points.set_index(["model", "entry"])
    keys = list(left[["model", "entry"]].drop_duplicates().itertuples(index=False, name=None))
    table.insert(3, "Retention, %", [f"{at.loc[key, 'retention']:.1f}" for key in keys])
    table["On the frontier"] = ["yes" if at.loc[key, "on"] else "no" for key in keys]
    return Table(table, f"The paper's aggregates, recomputed from the printed digits of its Table 1: {PUBLISHED}. "
                        "Its Figure 1 shows Dream-7B alone.")  # fmt: skip


def _wide(frame: pd.DataFrame, spell) -> pd.DataFrame:
    rows = []
    for (model, entry), group in frame.groupby(["model", "entry"], sort=False):
        row = {"Model": model, "Method": label(entry)}
        for _, r in group.iterrows():
            row[f"Without {r['without']}" if r["without"] else "All tasks, ×"] = spell(r)
        rows.append(row)
    return pd.DataFrame(rows)


def verdict(frame: pd.DataFrame, left: pd.DataFrame, paper: pd.DataFrame, n: pd.DataFrame, missing: Missing) -> Note:
    """What the figure shows, per model; the plan fixes no criterion for it."""
    if frame.empty:
        return Note("**Verdict.** No model has full decoding of every task among these records.")
    lines = [
        f"**Verdict.** {_scope(n, missing)} The plan fixes no criterion for this aggregate: exploratory, {BOOT}.",
        "",
    ]
    for model, group in frame.groupby("model", sort=False):
        jot = group[group["entry"] == "jot"]
        if jot.empty:
            lines.append(f"- {model}: JoT at its default is not complete")
            continue
        r = jot.iloc[0]
        top = group.loc[group["fastest"].idxmax()]
        swing = left[(left["model"] == model) & (left["entry"] == "jot") & (left["without"] != "")]
        low = swing.loc[swing["speedup"].idxmin()] if len(swing) else None
        lines.append(
            f"- {model}: JoT (default) {r['speedup']:.2f}× [{r['speedup_low']:.2f}, {r['speedup_high']:.2f}] at "
            f"{r['retention']:.1f} % [{r['retention_low']:.1f}, {r['retention_high']:.1f}] retention, on the frontier "
            f"of the {int(group['frontier'].notna().sum())} methods in {r['frontier']:.1f} % of draws; fastest: "
            f"{label(top['entry'])} at {top['retention']:.1f} % retention"
            + (f"; without {low['without']} JoT's mean is {low['speedup']:.2f}×" if low is not None else "")
        )
    for model, group in paper.groupby("model", sort=False):
        on = ", ".join(label(e) for e in group[group["on"]]["entry"])
        top, jot = group.loc[group["speedup"].idxmax()], group[group["entry"] == "jot"].iloc[0]
        lines.append(
            f"- {model} ({PUBLISHED}): JoT {jot['speedup']:.2f}× at {jot['retention']:.1f} %; on the frontier are {on}"
            f"; fastest: {label(top['entry'])}, {top['speedup']:.2f}×"
        )
    return Note("\n".join(lines))


# --- figure -------------------------------------------------------------------------------------------------


def figure(clouds: Mapping[str, Cloud], frame: pd.DataFrame, paper: pd.DataFrame, n: pd.DataFrame) -> Figure:
    """Per model: all methods, the crowded part enlarged, and the paper's points for the family's large model."""
    from jot.analysis.cells import family

    models = list(clouds)
    with plots.style():
        figure = Figure(figsize=(10.6, 0.9 + 3.1 * max(1, len(models))), layout="constrained")
        for axes, model in zip(figure.subplots(max(1, len(models)), 3, squeeze=False), models, strict=False):
            rows = frame[frame["model"] == model]
            for axis in axes[:2]:
                _ours(axis, clouds[model], rows)
            _zoom(axes[1], clouds[model], rows)
            axes[0].set_title(f"{model}\nall methods", loc="left", fontsize=8)
            axes[1].set_title(f"{model}, enlarged\nsmall squares: JoT's τ grid", loc="left", fontsize=8)
            theirs = paper[[family({"model": m}) == family({"model": model}) for m in paper["model"]]]
            _theirs(axes[2], theirs)
            axes[2].set_title(f"{theirs['model'].iloc[0]}, the paper's Table 1\npublished tier, no intervals",
                              loc="left", fontsize=8)  # fmt: skip
            for axis in axes:
                _axes(axis)
            axes[0].set_ylabel("Quality retention (%)")
        figure.legend(handles=_legend(frame["entry"]), loc="outside lower center", ncols=5)
        shown = tiers(models)
        figure.suptitle(
            f"Aggregate speed against quality: {shown}, beside the published tier. Exploratory.\n"
            f"{counts(n)}. Bars: 95 % intervals; dots: joint bootstrap draws (documents within tasks)",
            fontsize=8.5,
        )  # fmt: skip
    return figure


def _ours(axis, joint: Cloud, rows: pd.DataFrame) -> None:
    _, _, speed, quality = joint.aggregate()
    grid = rows[rows["entry"].str.startswith("jot ")]
    axis.plot(grid["speedup"], grid["retention"], "-", color=look("jot").color, alpha=0.6, linewidth=1,
              zorder=2)  # fmt: skip
    for i, (_, row) in enumerate(rows.iterrows()):
        entry, drawn = row["entry"], look(row["entry"])
        on_grid = entry.startswith("jot ")
        if not on_grid and entry != "full":
            axis.plot(speed[i, :400], quality[i, :400], ".", markersize=1.2, color=drawn.color, alpha=0.25, zorder=1,
                      rasterized=True)  # fmt: skip
        axis.errorbar(
            row["speedup"], row["retention"], xerr=plots._spread(row, "speedup"), yerr=plots._spread(row, "retention"),
            linestyle="", markersize=2.5 if on_grid else 5, elinewidth=0.6 if on_grid else 1,
            zorder=3 + (entry == "jot"), alpha=0.75 if on_grid else 1, **drawn.points(),
        )  # fmt: skip


def _zoom(axis, joint: Cloud, rows: pd.DataFrame) -> None:
    """Cut to the entries that keep most of the quality, full decoding aside."""
    near = rows[(rows["retention"] > 90) & (rows["entry"] != "full")]
    if near.empty:
        return
    low, high = near["retention_low"].min(), near["retention_high"].max()
    axis.set_xlim(near["speedup_low"].min() / 1.06, near["speedup_high"].max() * 1.06)
    axis.set_ylim(low - 0.16 * (high - low), high + 0.08 * (high - low))
    grid = near[near["entry"].str.startswith("jot ")]
    named = grid[
        grid["entry"].str.split().str[1].isin(("10", "30", "150"))
    ]  # the others lie too close to be told apart
    for _, row in named.iterrows():
        axis.annotate(row["entry"].split()[1], (row["speedup"], row["retention_low"]), xytext=(0, -9), ha="center",
                      textcoords="offset points", fontsize=7, color=look("jot").color)  # fmt: skip


def _theirs(axis, rows: pd.DataFrame) -> None:
    for _, row in rows.iterrows():
        axis.plot(row["speedup"], row["retention"], linestyle="", markersize=6, **look(row["entry"]).points())
        axis.annotate(f"{row['speedup']:.2f}×, {row['retention']:.1f} %", (row["speedup"], row["retention"]),
                      xytext=(0, 6), ha="center", textcoords="offset points", fontsize=6.5)  # fmt: skip
    axis.margins(0.16)


def _axes(axis) -> None:
    axis.axhline(100, color=plots.COLORS["gray"], linewidth=0.8, zorder=0)
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    ticks = [t for t in (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30) if low <= t <= high]
    ticks = ticks if len(ticks) < 9 else [t for t in ticks if t not in (1.5, 4, 6, 7, 8, 12, 15)]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="x", which="minor", length=0)
    axis.yaxis.set_major_locator(MaxNLocator(6))
    axis.set_xlabel("Geometric-mean step speedup (log scale)")


def _legend(entries: Iterable[str]) -> list[Line2D]:
    shown = set(entries)
    handles = []
    for entry in (*METHODS, *VARIANTS):
        if entry in shown or entry in METHODS:
            name = label(entry) + ("" if entry in shown else " (published only)")
            handles.append(Line2D([], [], linestyle="", label=name, **look(entry).points()))
    handles.append(Line2D([], [], markersize=2.5, label="JoT, τ from 10 to 150", **look("jot").points()))
    return handles


# --- checks -------------------------------------------------------------------------------------------------


def checks(clouds: Mapping[str, Cloud], frame: pd.DataFrame, n: pd.DataFrame, planned: Mapping[str, int]) -> Table:
    """What the figure rests on."""
    inside = [
        bool(r[f"{k}_low"] <= r[k] <= r[f"{k}_high"]) for _, r in frame.iterrows() for k in ("speedup", "retention")
    ]
    product = [
        np.allclose(c.aggregate()[0], [stats.geometric_mean(row) for row in c.speed])
        and np.allclose(c.aggregate()[1], [stats.retention(row, c.score[c.entries.index("full")]) for row in c.score])
        for c in clouds.values()
    ]
    apart = []
    for c in (c for c in clouds.values() if "jot" in c.entries and len(c.tasks) > 1):
        correlation = np.corrcoef(np.log(c.speed_draws[c.entries.index("jot")]))
        apart.append(float(np.abs(correlation[np.triu_indices(len(c.tasks), 1)]).max()))
    few = [f"{r['task']} ({r['n']:,})" for _, r in n.iterrows() if r["n"] < planned.get(r["task"], 0)]
    rows = [
        ("Every interval holds its estimate", all(inside), f"{len(inside)} intervals"),
        ("Aggregates equal geometric means and mean ratios over tasks", all(product), f"{len(product)} models"),
        ("Resamples of different tasks are uncorrelated (largest correlation of JoT's speedups under 0.05)",
         all(a < 0.05 for a in apart), ", ".join(f"{a:.3f}" for a in apart)),
        ("Every task has the planned number of documents", not few, ", ".join(dict.fromkeys(few))),
    ]  # fmt: skip
    table = [{"Statement": s, "": "holds" if ok else "**does not hold**", "Over": over} for s, ok, over in rows]
    return Table(pd.DataFrame(table), "Checks of the figure and the tables above.")
