"""The frames of ``wallclock`` as tables, sentences and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from jot import stats
from jot.analysis import plots, render, wallclock
from jot.analysis.cells import LABELS, family
from jot.analysis.wallclock import NAMES
from jot.analysis.wallclock_speed import ABSENT, Speed, brief, method_label, number
from jot.errors import UserError
from jot.paper.show import Note, Table
from jot.records import metas

BOOT = f"95 % percentile bootstrap over documents, {stats.N_BOOT:,} resamples"
PAPER_NAMES = {name: label.split(" (")[0] for name, label in NAMES.items()}
FILL = {"pocket_gsm8k": "full", "pocket_humaneval": "left"}  # of a marker
NO_CACHE = "fastdllm-nocache"  # how a replay of Fast-dLLM is drawn
SMALL = {"markersize": 4, "markeredgewidth": 0.7}
TICKS = (1, 2, 5, 10, 20, 50, 100)


def _interval(row: pd.Series, name: str, form: str = ".2f") -> str:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    return "" if pd.isna(value) else f"{value:{form}}\n[{low:{form}},\u00a0{high:{form}}]"


# --- sentences ----------------------------------------------------------------------------------------------


def a100(speed: Speed, samples: Mapping | None = None) -> Note:
    """Whether an A100 was at hand, read off the recorded hardware, and what fills its column."""
    cards = sorted({card for frame in speed.values() for card in frame["card"]} | _kinds(samples))
    command = "`python tests/speed/step_cost.py --only FAMILY TASK --out data/records/speed/step_cost-a100-NAME.json`"
    if any("A100" in card for card in cards):
        return Note(f"Timed on {', '.join(cards)}; the A100 column is filled.")
    return Note(
        f"**No A100 was available**: these timings are from {', '.join(cards) or 'no machine yet'}. On an A100, "
        f"{command} fills that column (llada or dream, gsm8k or humaneval)."
    )


def _where(frame: pd.DataFrame) -> str:
    """Tier, n, machine and batch of a frame, for its caption."""
    return f"{render.scope(frame)}; {' and '.join(dict.fromkeys(frame['machine']))}, batch 1"


def _cores(hardware: Mapping) -> str:
    cores, threads = hardware.get("cores"), hardware.get("threads")
    return f"{cores} cores, {threads} thread{'' if threads == 1 else 's'} used"


def _kinds(samples: Mapping | None) -> set[str]:
    hardware = [meta["hardware"] for meta in (samples or {}).values()]
    return {str(one.get("cpu") if one.get("kind") == "cpu" else one.get("kind")) for one in hardware}


def samples(folder: str | Path) -> dict[str, dict]:
    """Configuration and hardware of the timed cells; empty where only ``timings.csv`` is there."""
    try:
        return metas(folder)
    except UserError:
        return {}


def verdict(found: pd.DataFrame, summary: pd.DataFrame, paper: pd.DataFrame, speed: Speed, judged: tuple) -> Note:
    """The plan's criterion, then our kept shares, the paper's, and the full-size step."""
    word, detail = judged
    jot, theirs = summary[summary["method"] == "jot"], paper[paper["method"] == "jot"]
    long = theirs[theirs["task"].isin(["gsm8k", "humaneval"])]
    above = paper[paper["kept_low"] > 1]
    lines = [
        f"**Verdict.** {_where(summary)}. Seen or not seen at this scale only.",
        "",
        f"- Speedup on the clock stays below that in steps (JoT, both models, both long tasks): **{word}** "
        f"(clock over steps: {detail})",
    ]
    if len(jot):
        lines.append(
            "- By processor time, which other work on the machine does not lengthen, JoT keeps "
            f"{jot['cpu'].min():.2f} to {jot['cpu'].max():.2f} of its step speedup"
        )
    lines.append(
        f"- The paper's own tables: JoT keeps {long['kept'].min():.2f} to {long['kept'].max():.2f} on the two long "
        f"tasks and {theirs['kept'].min():.2f} to {theirs['kept'].max():.2f} over all four"
    )
    if len(above):
        named = ", ".join(f"{PAPER_NAMES[r['method']]} on {r['model']} {r['task']}" for _, r in above.iterrows())
        lines.append(f"- In {len(above)} of its {len(paper)} rows the clock gains more than the steps: {named}")
    cost = speed.get("step_cost")
    if cost is None:
        lines.append(f"- A step on a network of the published size: {ABSENT}")
    else:
        for card, group in cost[cost["method"] == "jot"].groupby("card"):
            lines.append(
                f"- {card}, published shapes, JoT: a step costs {group['over_bare'].min():.2f} to "
                f"{group['over_bare'].max():.2f} times the bare forward (a graph or compiled), and "
                f"{group['over_own'].min():.2f} to {group['over_own'].max():.2f} times the fastest one recorded"
            )
    if (ratio := wallclock.busy(found)) > wallclock.BUSY:
        lines.append(
            f"- The machine did other work meanwhile: the clock ran {ratio:.1f} times the processor time of the "
            "decoding"
        )
    return Note("\n".join(lines))


# --- tables -------------------------------------------------------------------------------------------------


def main(summary: pd.DataFrame) -> Table:
    """Speedup on the clock against speedup in steps."""
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "Method": method_label(r["method"], r["model"]),
            "n": f"{r['n']:,}",
            "In steps, ×": _interval(r, "step"),
            "On the clock, ×": _interval(r, "clock"),
            "Clock over steps": _interval(r, "kept"),
            "The same by processor time": _interval(r, "cpu"),
        }
        for _, r in summary.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"Speedup over full decoding in steps and on the clock. {_where(summary)}, methods in "
        f"turn on each document, medians of repeated decodings. Ratios of sums; {BOOT} shared across methods. Under "
        "the dual cache most steps run on one block, so a step of Fast-dLLM is cheaper than one of full decoding.",
    )


def steps(frame: pd.DataFrame) -> Table:
    """What a step costs beside a bare forward."""
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "Method": method_label(r["method"], r["model"]),
            "n": f"{r['n']:,}",
            "Steps": f"{r['steps']:.1f}",
            "Rows a step": number(r["rows"], ".1f"),
            "A step, ms": f"{r['step_ms']:.1f}\n[{r['step_low']:.1f},\u00a0{r['step_high']:.1f}]",
            "Bare forward, ms": number(r["bare_ms"], ".1f"),
            "Overhead a step, ms": number(r["overhead_ms"], ".1f"),
            "Step over bare": number(r["over"]),
            "A step on the clock, ms": f"{r['clock_ms']:.1f}",
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"What a step costs. {_where(frame)}; medians over documents of a decoding's time over its steps, set-up "
        "included, brackets: quartiles. On a CPU processor time, but for the last column. Bare forward: the whole "
        "canvas and the head on the mean number of rows read, nothing else. Under a cache forwards differ in kind, so "
        "there is no one bare forward.",
    )


def published(paper: pd.DataFrame, speed: Speed) -> Table:
    """The paper's A100 column, its loss against steps, and the full-size shapes timed here."""
    cost = speed.get("step_cost")
    cards = [] if cost is None else sorted(set(cost["card"]))
    columns = {brief(card): wallclock.on_card(cost, card) for card in cards}
    for name in ("H100", "A100"):
        if not any(name in column for column in columns):
            columns[name] = None
    rows = []
    for _, r in paper.iterrows():
        row = {
            "Model": r["model"],
            "Task": r["task"],
            "Method": PAPER_NAMES[r["method"]],
            "Paper, steps, ×": f"{r['step']:.2f}",
            "Paper, A100, ×": f"{r['clock']:.2f}",
            "Paper, clock over steps": f"{r['kept']:.2f}",
        }
        for name, mine in columns.items():
            row[f"{name} here, clock over steps"] = _replayed(mine, r)
        rows.append(row)
    return Table(
        pd.DataFrame(rows),
        "The paper's wall-clock table beside its main table (7B and 8B models, published tier, no intervals given), "
        "and networks of the same shapes with random weights timed here (full-size shapes, batch 1, bfloat16, commits "
        "replayed from recorded runs; steps and clock of the replay in small; medians of repeated runs, no interval). "
        "Shapes of three and five generated tokens were not timed.",
    )


def _replayed(mine: pd.DataFrame | None, row: pd.Series) -> str:
    if row["task"] not in ("gsm8k", "humaneval"):
        return "not timed"
    hit = None if mine is None else mine[(mine[list(wallclock.KEYS)] == row[list(wallclock.KEYS)]).all(axis=1)]
    if hit is None or hit.empty or pd.isna(hit["kept"].iloc[0]):
        return ABSENT
    one = hit.iloc[0]
    return f"{one['kept']:.2f}\n{one['speedup']:.2f}× in steps, {one['kept'] * one['speedup']:.2f}× on the clock"


def hardware(found: pd.DataFrame, samples: Mapping[str, Mapping], speed: Speed) -> Table:
    """Every machine that a number of this notebook comes from, and the paper's."""
    rows = []
    for meta in samples.values():
        one = meta["hardware"]
        rows.append((one.get("cpu") if one["kind"] == "cpu" else one["kind"],
                     _cores(one), one.get("driver_version") or "",
                     meta["versions"].get("torch") or "", f"embedded pair, {len(found):,} decodings"))  # fmt: skip
    for script, frame in speed.items():
        for one in frame[["card", "driver", "torch"]].drop_duplicates().itertuples(index=False):
            rows.append((one.card, "", one.driver or "", one.torch or "", script))
    rows.append(("NVIDIA A100, one (the paper)", "", "not given", "not given", "its wall-clock table"))
    names = ["Machine", "Cores", "Driver", "torch", "What"]
    table = pd.DataFrame(rows, columns=names)
    joined = table.groupby(names[:-1], sort=False)["What"].agg(lambda x: ", ".join(dict.fromkeys(x))).reset_index()
    return Table(joined, "Hardware behind the numbers of this notebook, as recorded beside them.")


def checks(found: pd.DataFrame, summary: pd.DataFrame, same: Sequence[Mapping]) -> Table:
    """What the tables rest on."""
    full = found[found["method"] == "full"]
    counts = found.groupby(["model", "task", "doc_id"])["method"].nunique()
    inside = all(((summary[k] >= summary[f"{k}_low"]) & (summary[k] <= summary[f"{k}_high"])).all()
                 for k in ("step", "clock", "kept", "cpu"))  # fmt: skip
    equal, n = sum(row["equal"] for row in same), sum(row["n"] for row in same)
    ratio = wallclock.busy(found)
    complete = bool((counts == counts.max()).all())
    planned = bool(full.groupby(["model", "task"])["steps"].nunique().eq(1).all())
    rows = [
        ("Every document was timed under every method", complete, f"{len(counts)} documents"),
        ("Full decoding takes as many steps on every document", planned, f"{len(full)} documents"),
        ("Every interval holds its estimate", inside, f"{4 * len(summary)} intervals"),
        ("Timed samples have the tokens of the recorded runs", equal == n and n > 0, f"{equal} of {n} samples"),
        ("The machine did little else meanwhile", ratio <= wallclock.BUSY, f"clock over processor time {ratio:.2f}"),
    ]
    return render.checks(pd.DataFrame(rows, columns=["statement", "holds", "detail"]))


# --- figure -------------------------------------------------------------------------------------------------


def figure(summary: pd.DataFrame, paper: pd.DataFrame, speed: Speed) -> Figure:
    """Speedup on the clock against speedup in steps, and their ratio; ours with intervals, the paper's faint."""
    replayed = _replays(speed)
    with plots.style():
        made = Figure(figsize=(8.6, 4.6), layout="constrained")
        axes = made.subplots(1, 2)
        for axis, name in zip(axes, ("clock", "kept"), strict=True):
            for rows, ours in ((paper, False), (summary, True)):
                for _, row in rows.iterrows():
                    _point(axis, row, name, ours)
            for _, row in replayed.iterrows():
                axis.plot(row["step"], row[name], linestyle="", zorder=2, **_replay(row))
            _axis(axis, name, pd.concat([summary, replayed]) if len(replayed) else summary, paper)
        axes[0].plot([0.8, 200], [0.8, 200], "--", color=plots.COLORS["gray"], linewidth=0.8, zorder=0)
        axes[1].axhline(1, linestyle="--", color=plots.COLORS["gray"], linewidth=0.8, zorder=0)
        made.legend(handles=_legend(summary, replayed), loc="outside lower center", ncols=4)
        made.suptitle(f"{_where(summary)}\nBars: {BOOT.split(',')[0]}", fontsize=8.5)
    return made


def _replays(speed: Speed) -> pd.DataFrame:
    """The full-size rows with a speedup, in the columns of ``summary``; without limits, for they have none."""
    columns = ["model", "method", "step", "clock", "kept"]
    rows = speed.get("step_cost")
    if rows is None:
        return pd.DataFrame(columns=columns)
    rows = rows[rows["method"] != "full"].dropna(subset="kept")
    return rows.assign(step=rows["speedup"], clock=rows["kept"] * rows["speedup"])[columns]


def _color(model: str) -> str:
    return plots.FAMILY_COLOR[family({"model": model})]


def _replay(row: pd.Series) -> dict:
    """A small marker with a dark edge; hollow for Fast-dLLM, which is replayed without a cache."""
    name = NO_CACHE if row["method"] == "fastdllm" else row["method"]
    return plots.LOOKS[name].points(_color(row["model"]), edge=plots.COLORS["black"]) | SMALL


def _point(axis, row: pd.Series, name: str, ours: bool) -> None:
    look = plots.LOOKS[row["method"]].points(_color(row["model"]))
    if not ours:
        axis.plot(row["step"], row[name], linestyle="", alpha=0.35, markersize=5, zorder=1, **look)
        return
    error = {f"{k}err": [[max(0, row[v] - row[f"{v}_low"])], [max(0, row[f"{v}_high"] - row[v])]]
             for k, v in (("x", "step"), ("y", name))}  # fmt: skip
    look |= {"fillstyle": FILL.get(row["task"], "bottom"), "markerfacecoloralt": "white", "markersize": 6.5}
    axis.errorbar(row["step"], row[name], linestyle="", markeredgewidth=0.8, elinewidth=0.9, zorder=3, **look, **error)


def _axis(axis, name: str, summary: pd.DataFrame, paper: pd.DataFrame) -> None:
    high = 1.6 * max(summary["step_high"].max(), summary["step"].max(), paper["step"].max())
    axis.set_xscale("log")
    axis.set_xlim(0.9, high)
    axis.set_xlabel("Speedup in steps (log scale)")
    both = ("x", "y") if name == "clock" else ("x",)
    if name == "clock":
        axis.set_yscale("log")
        axis.set_ylim(0.9, high)
        axis.set_ylabel("Speedup on the clock (log scale)")
        axis.set_title("Clock against steps; dashed: equal", loc="left")
    else:
        axis.set_ylabel("Speedup on the clock / in steps")
        axis.set_title("Share kept on the clock; dashed: all of it", loc="left")
        ours = summary[["kept_low", "kept_high", "kept"]].to_numpy(dtype=float).ravel()
        values = np.concatenate([ours, paper["kept"].to_numpy()])
        axis.set_ylim(min(0.6, np.nanmin(values) - 0.05), max(1.1, np.nanmax(values) + 0.05))
    for letter in both:
        line = getattr(axis, f"{letter}axis")
        line.set_ticks([tick for tick in TICKS if tick < high])
        line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        line.set_minor_formatter(NullFormatter())
        axis.tick_params(axis=letter, which="minor", length=0)


def _legend(summary: pd.DataFrame, replayed: pd.DataFrame) -> list[Line2D]:
    black, gray = plots.COLORS["black"], plots.COLORS["gray"]
    handles = [Line2D([], [], color=_color(model), label=model) for model in dict.fromkeys(summary["model"])]
    handles += [
        Line2D([], [], linestyle="", label=NAMES[m], **plots.LOOKS[m].points(black))
        for m in dict.fromkeys(summary["method"])
    ]
    if (replayed["method"] == "fastdllm").any():
        handles.append(Line2D([], [], linestyle="", label=LABELS[NO_CACHE], **plots.LOOKS[NO_CACHE].points(black)))
    any_method = {"linestyle": "", **plots.LOOKS["jot"].points(gray)}
    handles += [
        Line2D([], [], label=task, **any_method, fillstyle=FILL.get(task, "bottom"), markerfacecoloralt="white")
        for task in dict.fromkeys(summary["task"])
    ]
    handles.append(Line2D([], [], label="faint: paper, A100, 7B and 8B models", alpha=0.35, **any_method))
    if len(replayed):
        look = any_method | SMALL | {"markeredgecolor": black}
        handles.append(Line2D([], [], label="dark edge: full-size shapes here, replayed", **look))
    return handles
