"""The frames of ``composability`` as captioned tables, the verdict and the figure."""

from __future__ import annotations

import warnings

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from jot.analysis import composability, plots, render
from jot.analysis.spelling import of
from jot.paper.show import Note, Table

BESIDE = {"full": "Full decoding", "fastdllm": "Fast-dLLM, dual cache"}


def _number(row: pd.Series, name: str, digits: int) -> str:
    return of(row, name, digits, empty="not recorded", comma=",\u00a0")


def table(frame: pd.DataFrame, published: pd.DataFrame) -> Table:
    """The paper's composability table: configurations against tasks, ours and the paper's."""
    tasks = list(dict.fromkeys(frame["task"]))
    paper = published.set_index(["family", "task", "row"])
    rows = []
    for (model, key), group in frame.groupby(["model", "row"], sort=False):
        at, kind = group.set_index("task"), group["family"].iloc[0]
        row = {("", "Model"): model, ("", "Configuration"): group["label"].iloc[0]}
        for task in tasks:
            here = at.loc[task] if task in at.index else pd.Series(dtype=object)
            beside = paper.loc[(kind, task, key)] if (kind, task, key) in paper.index else None
            row[task, "Score, %"] = _number(here, "score", 1)
            speed = _number(here, "speedup", 2)
            row[task, "Speedup, ×"] = speed.split("\n")[0] if key.startswith("full") else speed
            row[task, "Paper: score"] = "" if beside is None or pd.isna(beside["score"]) else f"{beside['score']:.1f}"
            row[task, "Paper: speedup"] = "" if row[task, "Paper: score"] == "" else f"{beside['speedup']:.2f}"
        rows.append(row)
    shown = pd.DataFrame(rows)
    shown.columns = pd.MultiIndex.from_tuples(shown.columns)
    caption = (
        f"Composition with the dual cache. {render.scope(frame)}. Score: {render.WILSON}. Speedup: configured over "
        f"actual steps, every forward counting as one; {render.BOOT}. "
        "Every row under a cache decodes greedily in blocks, as the cached decoder is published; rows without one are "
        "the main table's, or say so. Paper: its composability table and its main table for 7B and 8B models on the "
        "real benchmarks, another tier."
    )
    return Table(shown, caption)


def differences(frame: pd.DataFrame) -> Table:
    """Paired differences of every configuration to full decoding and to Fast-dLLM."""
    rows = []
    for _, r in frame[frame["row"] != "full"].iterrows():
        row = {"Model": r["model"], "Task": r["task"], "Configuration": r["label"], "n": f"{r['n']:,}"}
        for name, label in BESIDE.items():
            known = not pd.isna(r.get(f"{name}_b"))
            row[f"Minus {label}, points"] = render._points(r, f"{name}_")
            row[f"b, c against {label}"] = f"{r[f'{name}_b']:.0f}, {r[f'{name}_c']:.0f}" if known else ""
        rows.append(row)
    caption = (
        f"Paired differences by document. {render.scope(frame)}. Against full decoding of the main table and against "
        f"Fast-dLLM under the same cache; {render.TANGO}. b: only the row's configuration right; c: only the other. "
        "Exploratory: intervals alone, not adjusted."
    )
    return Table(pd.DataFrame(rows), caption)


def costs(frame: pd.DataFrame) -> Table:
    """What the forwards of a configuration cover."""
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "Configuration": r["label"],
            "Forwards": f"{r['steps']:.2f}",
            "Full": f"{r['forwards_full']:.2f}",
            "Suffix": f"{r['forwards_suffix']:.2f}",
            "In block": f"{r['forwards_block']:.2f}",
            "Speedup, ×": f"{r['speedup']:.2f}",
            "Positions run": "" if pd.isna(r["tokens"]) else f"{r['tokens']:,.0f}",
            "Speedup in positions, ×": "" if pd.isna(r["token_speedup"]) else _number(r, "token_speedup", 2),
        }
        for _, r in frame.iterrows()
    ]
    caption = (
        f"Forwards per document by what they cover. {render.scope(frame)}. Full: prompt and canvas; suffix: from the "
        f"block to the canvas's end; in block: a block of {composability.BLOCK}. The speedup counts each as one. "
        "Positions run: forwards weighted by the positions that they run the network on; speedup in positions: full "
        f"decoding without a cache over that; {render.BOOT}. The keys that an in-block forward attends to are not "
        "counted, nor is time on any machine. Blank under the prefix cache, where the suffix's length is not recorded."
    )
    return Table(pd.DataFrame(rows), caption)


def retuning(frame: pd.DataFrame) -> Table:
    """What retuning the threshold on the reported documents claims."""
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "n": f"{r['n']:,}",
            "τ best on test": f"{r['best']:g}",
            "Would claim, %": f"{r['claimed']:.2f}",
            "τ chosen on each half": ", ".join(f"{tau:g}" for tau in r["chosen"]),
            "Scored on the other half, %": "" if pd.isna(r["honest"]) else f"{r['honest']:.2f}",
            "Optimism, points": "" if pd.isna(r["honest"]) else f"{r['claimed'] - r['honest']:+.2f}",
            "The paper's τ": f"{r['retuned']:g}",
            "Score there, %": f"{r['at_retuned']:.2f}",
        }
        for _, r in frame.iterrows()
    ]
    scope = render.scope(frame) if len(frame) else "No complete sweep is recorded"
    caption = (
        f"Retuning under the cache. {scope}. The highest score over the sweep, chosen on the documents "
        "that are reported, beside the same choice made on one half of the documents and scored on the other, both "
        "ways, pooled. Only the test split is recorded under the cache, so there is no threshold chosen on dev here. "
        "Descriptive, no interval."
    )
    return Table(pd.DataFrame(rows), caption)


def verdict(judged: pd.DataFrame, frame: pd.DataFrame) -> Note:
    """The head of the notebook: the plan's criteria of this topic."""
    words = [f"- {r['claim']}: **{r['status']}** ({r['detail']})" for _, r in judged.iterrows()]
    return Note(
        f"**Verdict.** {render.scope(frame)}; criteria of the plan, exploratory, 95 % intervals. "
        "Seen or not seen at this scale only.\n\n" + "\n".join(words)
    )


# --- figure -------------------------------------------------------------------------------------------------

SHOWN = {  # row -> name in ``plots.LOOKS``, label
    "fastdllm": ("fastdllm", "Fast-dLLM, dual cache"),
    "jot-alone": ("jot", "JoT alone (default)"),
    "jot-blocks": ("jot-blocks", "JoT greedy in blocks, no cache"),
    "dual": ("jot-dual", "JoT in the dual cache"),
    "block-start": ("jot-block-start", "the same, exits when a block opens"),
    "prefix": ("jot-prefix", "JoT, prefix cache"),
}
LINES = {  # full decoding has a speedup of 1: a level and a band
    "full": "full decoding (main table)",
    "full-dual": "full decoding, dual cache",
}


def _kind(row: str) -> str:
    return next((k for k in ("dual", "jot-blocks") if row.startswith(f"{k}-")), row)


def figure(frame: pd.DataFrame) -> Figure:
    """Score against step speedup under the cache, a panel per model and task, all intervals drawn.

    Thresholds stand beside the ends of the sweep, the paper's retuned one, and the rows with another than the default.
    """
    models, tasks = (list(dict.fromkeys(frame[k])) for k in ("model", "task"))
    with plots.style(), warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        drawn = Figure(figsize=(3.7 * len(tasks) + 0.2, 2.9 * len(models) + 1.1), layout="constrained")
        axes = drawn.subplots(len(models), len(tasks), squeeze=False)
        for line, model in zip(axes, models, strict=True):
            for axis, task in zip(line, tasks, strict=True):
                _panel(axis, frame[(frame["model"] == model) & (frame["task"] == task)], f"{model}, {task}")
        used = set(map(_kind, frame["row"]))
        handles = [
            Line2D([], [], linestyle=plots.LOOKS[kind].line, color=plots.LOOKS[kind].color, label=label)
            for kind, label in LINES.items() if kind in used
        ] + [
            Line2D([], [], linestyle="-" if kind == "dual" else "", label=label, **plots.LOOKS[method].points())
            for kind, (method, label) in SHOWN.items() if kind in used
        ]  # fmt: skip
        drawn.legend(handles=handles, loc="outside lower center", ncols=3)
        tiers = render.tiers(models)
        drawn.suptitle(f"JoT inside the dual cache: {tiers}. Bars and bands: 95 % intervals\n(Wilson; bootstrap "
                       "over documents). Small numbers: τ. Full decoding: 1×, levels alone", fontsize=8.5)  # fmt: skip
    return drawn


def _panel(axis, group: pd.DataFrame, title: str) -> None:
    for kind in LINES:
        look = plots.LOOKS[kind]
        for _, row in group[group["row"] == kind].iterrows():
            axis.axhline(row["score"], linestyle=look.line, color=look.color, linewidth=1.0, zorder=1)
            axis.axhspan(row["score_low"], row["score_high"], color=look.color, alpha=0.07, linewidth=0)
    sweep = group[group["row"].str.startswith("dual-")].sort_values("tau")
    axis.plot(sweep["speedup"], sweep["score"], "-", color=plots.LOOKS["jot-dual"].color, alpha=0.6, zorder=2)
    for _, row in group.iterrows():
        kind = _kind(row["row"])
        if kind not in SHOWN:
            continue
        look = plots.LOOKS[SHOWN[kind][0]]
        axis.errorbar(
            row["speedup"],
            row["score"],
            xerr=plots._spread(row, "speedup"),
            yerr=plots._spread(row, "score"),
            linestyle="",
            elinewidth=0.8,
            zorder=3 + look.hollow,  # the others lie below where they meet
            markeredgewidth=1.1 if look.hollow else 0.5,
            markersize=7,
            **look.points(edge="white"),
        )
        named = {sweep["tau"].min(), sweep["tau"].max(), composability.RETUNED[row["family"]]}
        if kind in ("jot-blocks", "block-start") or (kind == "dual" and row["tau"] in named):
            left, under = kind == "dual" and row["tau"] == sweep["tau"].max(), kind == "jot-blocks"
            axis.annotate(
                f"{row['tau']:g}",
                (row["speedup"], row["score"]),
                xytext=(-8, -8) if under else (-3 if left else 3, 4),
                textcoords="offset points",
                ha="right" if left or under else "left",
                fontsize=6.5,
                color=look.color,
            )
    if len(group):
        axis.set_title(f"{title}  (n = {plots._range(group['n'])})", loc="left")
    axis.margins(x=0.08)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.set_xlabel("Step speedup (every forward counts as one)")
    axis.set_ylabel("Score (%)")
