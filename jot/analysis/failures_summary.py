"""The failure analysis in short: its verdict, its figure of wrong answers per fifth, and its checks."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jot.analysis import cells, failures, phenomena, plots, render, tables
from jot.analysis.failures import Runs
from jot.analysis.failures_view import interval, printed, same_family, scope
from jot.paper import modes as failure_modes
from jot.paper.show import Note, Table


def verdict(runs: Runs, frame: pd.DataFrame, modes_frame: pd.DataFrame) -> Note:
    """What the notebook found, at its head: the plan's criteria first."""
    default = runs.model == "pocket-dream" and set(runs.jot) == {90, 30}
    planned = "" if default else f"; the plan names pocket-dream at 90 and 30, here {runs.model}"
    (tau, jot), *rest = runs.jot.items()
    status, detail = failures.slow_errors(jot, runs.full)
    fixed = phenomena.opening(phenomena.fixed(failures.PHENOMENA))
    lines = [f"**Verdict.** {scope(runs)}. {fixed}. Seen or not seen at this scale only.", ""]
    lines.append(f"- Errors concentrate where JoT is slow (τ = {tau:g}{planned}): **{status}** ({detail})")
    for low, aggressive in rest:
        status, detail = failures.rejections(jot, aggressive, runs.full)
        claim = f"McNemar keeps τ = {tau:g} and rejects τ = {low:g} at the paper's n{planned}"
        lines.append(f"- {claim}: **{status}** ({detail})")
    for _, r in frame[(frame["n"] == frame["n"].max()) & frame["run"].str.startswith("JoT")].iterrows():
        lines.append(
            f"- {r['run']}: {' '.join(render._points(r).split(chr(10)))} points to full decoding, "
            f"{r['b']} repairs, {r['c']} breaks, exact p {render.pvalue(r['p'])}; same outcome on "
            f"{r['outcomes']:.1f} %, same final answer on {r['answers']:.1f} %"
        )
    rate = modes_frame.set_index(["run", "mode"])
    for name in failure_modes.MODES[:3]:
        shown = [
            f"{'full decoding' if run == 'full' else run} "
            f"{interval(rate.loc[run, name], 'rate').replace(chr(10), ' ')} %"
            for run in dict.fromkeys(modes_frame["run"])
        ]
        lines.append(f"- {name}, {failure_modes.MEANING[name]}: {'; '.join(shown)}, of all documents")
    return Note("\n".join(lines))


def checks(runs: Runs, frame: pd.DataFrame, groups: pd.DataFrame, labelled: pd.DataFrame) -> Table:
    """What the tables rest on, each as a statement that may fail, and the numbers behind it."""
    same, twins, planned, all_steps = 0, 0, True, True
    for name, traced in runs.traced.items():
        plain = runs.full if name == "full" else runs.jot[name]
        one = plain.recorded.frame.set_index("doc_id")["generated"]
        for doc_id, tokens in zip(traced.recorded.frame["doc_id"], traced.recorded.frame["generated"], strict=True):
            if doc_id in one.index:
                twins += 1
                same += np.array_equal(one[doc_id], tokens)
        if name == "full":
            planned = all((np.asarray(rules) == 1).all() for rules in traced.recorded.frame["trace_rule"])
            all_steps = bool((traced.column("steps") == traced.column("configured_steps")).all())
    gaps = []
    for _, r in frame.iterrows():
        base = tables.score(failures.cut(runs.full, r["n"])).value
        gaps += [r["score"] - base - r["difference"], r["repairs"] - r["breaks"] - r["difference"]]
    sizes = groups.groupby(["tau", "by"])["n"].agg(["sum", "max", "min"])
    texts = {}
    for name, traced in runs.traced.items():
        rows = zip(traced.recorded.frame["doc_id"], traced.recorded.frame["text"], strict=True)
        texts |= {(doc_id, None if name == "full" else float(name)): text for doc_id, text in rows}
    mine = labelled[labelled["model"] == runs.model]
    read = [(texts.get((r["doc_id"], None if pd.isna(r["tau"]) else float(r["tau"]))), r["text"])
            for _, r in mine.iterrows()]  # fmt: skip
    read = [(recorded, text) for recorded, text in read if recorded is not None]
    statements = [
        ("Differences equal those of the scores, and repairs minus breaks", bool(np.allclose(gaps, 0)),
         f"{len(frame)} pairs"),
        ("Fifths differ in size by at most one", bool((sizes["max"] - sizes["min"] <= 1).all()),
         f"{len(sizes)} groupings"),
        ("Traced runs have the tokens of the untraced ones", same == twins, f"{same:,} of {twins:,} outputs"),
        ("Full decoding commits by schedule alone and takes every step", planned and all_steps,
         f"{runs.traced['full'].n:,} traced documents" if "full" in runs.traced else "none traced"),
        ("Labelled texts are the recorded texts", all(a == b for a, b in read), f"{len(read)} of {len(mine)} at hand"),
    ]  # fmt: skip
    if not runs.traced:
        statements = [row for row in statements if not row[0].startswith(("Traced", "Full", "Labelled"))]
    return render.checks(pd.DataFrame(statements, columns=["statement", "holds", "detail"]))


def figure(runs: Runs, frame: pd.DataFrame) -> Figure:
    """Error per fifth with Wilson intervals: by achieved speedup at each threshold, and by the first margin."""
    panels = [(tau, "speedup") for tau in runs.jot]
    panels += [
        (tau, "margin") for tau in list(runs.jot)[:1] if ((frame["tau"] == tau) & (frame["by"] == "margin")).any()
    ]
    color = plots.FAMILY_COLOR[cells.family(runs.full.config)]
    with plots.style():
        made = Figure(figsize=(2.7 * len(panels) + 0.4, 3.3), layout="constrained")
        axes = made.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        published_drawn = False
        for axis, (tau, by) in zip(axes, panels, strict=True):
            group = frame[(frame["tau"] == tau) & (frame["by"] == by)]
            _errors(axis, group, "jot", -0.1, color)
            _errors(axis, group, "full", 0.1)
            numbers = [printed(f"error_q{i}", tau) for i in group["fifth"]]
            if by == "speedup" and same_family(runs) and None not in numbers:
                published_drawn = True
                each = failures.PAPER_N // 5
                limits = pd.DataFrame([failures.share(round(v * each / 100), each, "jot") for v in numbers])
                _errors(axis, limits.assign(fifth=group["fifth"].to_numpy()), "jot", 0.28, plots.COLORS["gray"], 0.6)
            ends = ("slowest", "fastest") if by == "speedup" else ("lowest", "highest")
            axis.set_xticks(group["fifth"])
            axis.set_xticklabels([f"Q{i}" + {1: f"\n{ends[0]}", 5: f"\n{ends[1]}"}.get(i, "") for i in group["fifth"]])
            axis.set_xlim(0.5, 5.6)
            axis.set_ylim(-2, 100)
            axis.set_title(f"τ = {tau:g}, n = {group['n'].sum():,}", loc="left")
            axis.set_xlabel("Fifth by " + ("achieved speedup" if by == "speedup" else "first-step mean margin"))
        axes[0].set_ylabel("Wrong answers (%)")
        made.legend(handles=_handles(color, published_drawn), loc="outside lower center", ncols=3)
        made.suptitle(f"{runs.model}, {runs.task}: {render.tier(runs.model)}. Bars: {render.WILSON}s", fontsize=8.5)
    return made


def _errors(axis, group: pd.DataFrame, name: str, shift: float, color: str | None = None, alpha: float = 1.0) -> None:
    spread = [group[name] - group[f"{name}_low"], group[f"{name}_high"] - group[name]]
    axis.errorbar(
        group["fifth"] + shift, group[name], yerr=np.clip(spread, 0, None), alpha=alpha, elinewidth=0.9, linestyle="",
        **plots.LOOKS[name].points(color),
    )  # fmt: skip


def _handles(color: str, published: bool) -> list[Line2D]:
    handles = [
        Line2D([], [], linestyle="", label="JoT", **plots.LOOKS["jot"].points(color)),
        Line2D([], [], linestyle="", label="Full decoding", **plots.LOOKS["full"].points()),
    ]
    if published:
        label = "published JoT, Dream-7B (bars: 100 documents a fifth)"
        look = plots.LOOKS["jot"].points(plots.COLORS["gray"])
        handles.append(Line2D([], [], linestyle="", alpha=0.6, label=label, **look))
    return handles
