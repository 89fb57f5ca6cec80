"""The frames of ``temperature`` as captioned tables and a figure; for any notebook that shows the topic."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jot.analysis import plots, render, temperature
from jot.analysis.spelling import of
from jot.paper.show import Table

GATES = (
    "Dream draws from a nucleus of 0.9 at every temperature, and Fast-dLLM's published gate reads the probability "
    "after temperature and nucleus; at T = 0 too it reads it within the nucleus, so it passes a little more than in "
    "the main table. LLaDA's published gate reads the untempered probability of the token drawn, the raw gate that of "
    "the likeliest token."
)


def table(frame: pd.DataFrame) -> Table:
    """Score and speedup of every method at every temperature."""
    rows = []
    for (model, task, method), group in frame.groupby(["model", "task", "method"], sort=False):
        at = group.set_index("temperature")
        row = {"Model": model, "Task": task, "Method": temperature.LABELS[method]}
        for t in temperature.TEMPERATURES:
            cell = at.loc[t] if t in at.index else None
            row[f"T = {t:g}"] = (
                "not recorded" if cell is None else f"{of(cell, 'score')}\n{of(cell, 'speedup', 2, unit='×', gap=' ')}"
            )
        rows.append(row)
    caption = (
        f"Score in percent and step speedup at four temperatures. {render.scope(frame)}. Score: {render.WILSON}; "
        f"speedup: {render.BOOT}. JoT's margin is read before the temperature. {GATES} "
        "Thresholds are the same at every temperature."
    )
    return Table(pd.DataFrame(rows), caption)


def differences(frame: pd.DataFrame) -> Table:
    """What a temperature above 0 does to each method, and each method against full decoding."""
    rows = []
    for _, r in frame.iterrows():
        if r["method"] == "full" and not r["temperature"]:
            continue
        due = {"cold": r["temperature"] > 0, "full": r["method"] != "full", "gate": r["method"] == "fastdllm-raw"}
        shown = {k: render._points(r, f"{k}_") or ("not recorded" if needed else "") for k, needed in due.items()}
        rows.append(
            {
                "Model": r["model"],
                "Task": r["task"],
                "Method": temperature.LABELS[r["method"]],
                "T": f"{r['temperature']:g}",
                "n": f"{r['n']:,}",
                "Minus itself at T = 0, points": shown["cold"],
                "Minus full decoding at this T, points": shown["full"],
                "Raw gate minus published, points": shown["gate"],
            }
        )
    caption = (
        f"Paired differences by document. {render.scope(frame)}. {render.TANGO}. Exploratory: intervals alone, not "
        f"adjusted. {GATES}"
    )
    return Table(pd.DataFrame(rows), caption)


def beside_paper(frame: pd.DataFrame, prose: pd.DataFrame) -> Table:
    """The paper's two numbers beside ours for the same pair of temperatures (Dream, humaneval)."""
    ours = frame[(frame["family"] == "dream") & (frame["task"] == temperature.TASKS[1])]
    rows = [
        {"Source": f"paper, {r['place']}", "What": r["claim"].partition(": ")[2], "Score, %": f"{r['value']:.1f}",
         "Speedup, ×": ""}
        for _, r in prose.iterrows()
    ]  # fmt: skip
    for method in ("fastdllm", "fastdllm-raw", "jot", "full"):
        for t in temperature.TEMPERATURES[:2]:
            for _, r in ours[(ours["method"] == method) & (ours["temperature"] == t)].iterrows():
                what = f"{temperature.LABELS[method]}, {r['task']}, T = {t:g}"
                rows.append({"Source": r["model"], "What": what, "Score, %": of(r, "score"),
                             "Speedup, ×": of(r, "speedup", 2)})  # fmt: skip
    scope = render.scope(ours) if len(ours) else "Not recorded here"
    caption = (
        f"The collapse of a probability threshold. {scope}. Score: {render.WILSON}; speedup: {render.BOOT}. The paper "
        "gives its two scores in the text alone, for Dream-7B on HumanEval, another tier."
    )
    return Table(pd.DataFrame(rows), caption)


# --- figure -------------------------------------------------------------------------------------------------

DODGE = {"full": -0.18, "jot": -0.06, "fastdllm": 0.06, "fastdllm-raw": 0.18}  # in steps of the axis


def figure(frame: pd.DataFrame) -> Figure:
    """Score and speedup against temperature, a column per model and task, intervals drawn."""
    panels = list(dict.fromkeys(zip(frame["model"], frame["task"], strict=True)))
    with plots.style():
        drawn = Figure(figsize=(2.35 * len(panels) + 0.6, 5.0), layout="constrained")
        axes = drawn.subplots(2, len(panels), squeeze=False, sharex=True, sharey="row")
        for column, (model, task) in zip(axes.T, panels, strict=True):
            group = frame[(frame["model"] == model) & (frame["task"] == task)]
            for axis, name in zip(column, ("score", "speedup"), strict=True):
                _lines(axis, group, name)
            column[0].set_title(f"{model}\n{task}  (n = {plots._range(group['n'])})", loc="left", fontsize=7.5)
            column[1].set_xlabel("Temperature")
            column[1].set_xticks(range(len(temperature.TEMPERATURES)), [f"{t:g}" for t in temperature.TEMPERATURES])
        axes[0, 0].set_ylim(0, 100)
        axes[1, 0].set_ylim(bottom=0)
        axes[0, 0].set_ylabel("Score (%)")
        axes[1, 0].set_ylabel("Step speedup (×)")
        handles = [
            Line2D([], [], linestyle=plots.LOOKS[method].line, label=temperature.LABELS[method],
                   **plots.LOOKS[method].points())
            for method in DODGE if (frame["method"] == method).any()
        ]  # fmt: skip
        drawn.legend(handles=handles, loc="outside lower center", ncols=4)
        tiers = render.tiers(frame["model"])
        drawn.suptitle(f"One threshold at four temperatures: {tiers}. Bars: 95 % intervals (Wilson; bootstrap)",
                       fontsize=8.5)  # fmt: skip
    return drawn


def _lines(axis, group: pd.DataFrame, name: str) -> None:
    for method, dodge in DODGE.items():
        look = plots.LOOKS[method]
        line = group[group["method"] == method].sort_values("temperature")
        at = [temperature.TEMPERATURES.index(t) + dodge for t in line["temperature"]]
        if name == "speedup" and method == "full":
            continue  # 1 by definition
        axis.plot(at, line[name], look.line, color=look.color, alpha=0.5, zorder=2)
        for x, (_, row) in zip(at, line.iterrows(), strict=True):
            axis.errorbar(
                x,
                row[name],
                yerr=plots._spread(row, name),
                linestyle="",
                elinewidth=0.8,
                zorder=3,
                markeredgewidth=1.0 if look.hollow else 0.5,
                markersize=5 if look.hollow else 6,
                **look.points(edge="white"),
            )
