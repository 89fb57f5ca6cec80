"""The ledger as a notebook shows it: verdict counts, a table per kind with failures first, a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
from matplotlib.figure import Figure

from jot.analysis import ledger, ledger_tables, plots, render
from jot.analysis.cells import MODELS, TASKS, Records
from jot.analysis.ledger import KINDS, VERDICTS, Entry
from jot.paper.show import Note, Table

# Part of the paper -> how its headings and the labels of its captions begin.
PARTS = {
    "Abstract, introduction": ("Abstract", "Introduction"),
    "Approach": ("Confidence Metric", "Early-Exit", "Computational", "Implementation"),
    "Bound": ("Early exit and", "The bound", "Why quality"),
    "Setup": ("Experiment",),
    "Main results": ("Main Results", "main_results", "pareto"),
    "Composition": ("Composability", "composability"),
    "Threshold": ("Threshold Ablation", "threshold_ablation"),
    "Spatial modulation": ("Spatial Modulation", "spatial_ablation"),
    "Sweep": ("Hyperparameter", "sweep"),
    "Limits, conclusion": ("Limitations", "Conclusion"),
    "Wall-clock": ("Wallclock", "wallclock"),
    "Minimum threshold": ("Effect of Minimum", "tau_min_ablation"),
    "Text quality": ("Generation Quality", "quality"),
    "LLaDA thresholds": ("LLaDA Threshold", "llada_ablation"),
    "Confidence dynamics": ("Confidence Dynamics", "dynamics"),
    "Failure analysis": ("Failure Mode", "Overall effect", "Identified", "Speedup--error"),
}
HEADINGS = {
    "arithmetic": "Numbers that follow from other numbers of the paper",
    "comparison": "Orderings and statements about the paper's own tables",
    "setting": "Configurations that the paper states, against the defaults of this package",
    "phenomenon": "Effects, looked for in the recorded runs of the embedded models (embedded tier, 5 M parameters)",
    "full-size": "Measurements that need the 7B and 8B weights",
}
COLORS = {
    "fails": plots.COLORS["vermillion"],
    "not seen": plots.COLORS["orange"],
    "undecided": plots.COLORS["yellow"],
    "not shown": "#FFFFFF",
    "needs the full-size weights": "#BBBBBB",
    "seen": plots.COLORS["sky"],
    "holds": plots.COLORS["blue"],
}
DARK = ("fails", "holds")  # bars whose counts are written in white


class LongTable(Table):
    """A table of sentences: text to the left and wrapped; ``widths`` are hints in percent per column."""

    def __init__(self, frame: pd.DataFrame, caption: str, widths: Sequence[int] = ()):
        super().__init__(frame, caption)
        self.widths = widths

    def _repr_html_(self) -> str:
        left = "text-align:left;white-space:normal;vertical-align:top"
        made = super()._repr_html_().replace("<td>", f'<td style="{left}">')
        head, *columns = made.split("<th ")
        widths = [f";width:{w}%" for w in self.widths] or [""] * len(columns)
        return head + "".join(
            f'<th style="{left}{width}" {column}' for width, column in zip(widths, columns, strict=True)
        )


def part(section: str) -> str:
    """The part of the paper that a place belongs to, or the place itself where none does."""
    head = section.removeprefix("Appendix, ").removeprefix("Caption of ")
    return next((name for name, starts in PARTS.items() if head.startswith(starts)), section)


def _counts(frame: pd.DataFrame) -> str:
    by_status = frame["status"].value_counts()
    return ", ".join(f"{status} {by_status[status]}" for status in VERDICTS if status in by_status)


def verdict(frame: pd.DataFrame) -> Note:
    """What stands at the head of the notebook."""
    frame, ours = frame[~frame["ours"]], frame[frame["ours"]]
    lines = [
        f"**Verdict.** {len(frame)} claims: {_counts(frame)}. Arithmetic and comparisons are checked on the paper's "
        "own tables (published tier); seen or not seen is said of the embedded models alone (embedded tier, 5 M "
        "parameters) and confirms or refutes no number of a 7B or 8B model.",
        "",
    ]
    lines += [f"- {kind}: {_counts(frame[frame['kind'] == kind])}" for kind in KINDS if (frame["kind"] == kind).any()]
    told = ", ".join(f"{r['id']} {r['status']}" for _, r in ours.iterrows())
    lines += [f"- not counted, checks of what the paper implies and states nowhere: {told}"] if told else []
    return Note("\n".join(lines))


def sizes(records: Records) -> str:
    """``n = 2,000 pocket_gsm8k, ...`` of the test cells of the shown models that phenomena are judged on."""
    rows = [
        {"task": run.meta["config"]["task"], "n": run.n}
        for run in records.values()
        if run.meta["config"]["split"] == "test" and run.meta["config"]["model"] in MODELS
    ]
    frame = pd.DataFrame(rows, columns=["task", "n"])
    shown = [task for task in TASKS if task in set(frame["task"])]
    return render.counts(frame.set_index("task").loc[shown].reset_index()) if shown else "n = 0, nothing is recorded"


def table(frame: pd.DataFrame, kind: str, records: Records | None = None) -> Table:
    """The entries of one kind, failures first; within a verdict in the order of the paper."""
    rows = frame[frame["kind"] == kind]
    rows = rows.assign(order=rows["status"].map(VERDICTS.index)).sort_values("order", kind="stable")
    aside = "note" if kind in ("phenomenon", "full-size") else "read as"
    shown = pd.DataFrame(
        {
            "Verdict": [
                f"**{status}**" + "\nnot counted, a check of our own" * own
                for status, own in zip(rows["status"], rows["ours"], strict=True)
            ],
            "Claim, in our words": [
                claim + (f"\n{aside}: {reading}" if reading else "")
                for claim, reading in zip(rows["claim"], rows["reading"], strict=True)
            ],
            "Numbers": rows["detail"],
            "Place": rows["section"],
            "Entry": [
                name + (f"\n{criterion}" if criterion else "")
                for name, criterion in zip(rows["id"], rows["criterion"], strict=True)
            ],
        }
    )
    widths = (8, 34, 28, 15, 15)
    if kind == "full-size":
        shown, widths = shown.drop(columns=["Numbers"]), (12, 50, 20, 18)
    caption = _caption(kind, records or {}, rows["criterion"])
    return LongTable(shown, f"{HEADINGS[kind]}: {_counts(rows[~rows['ours']]) or 'none'}. {caption}", widths)


def _caption(kind: str, records: Records, criteria: Iterable[str]) -> str:
    if kind == "phenomenon":
        from jot.analysis import phenomena

        return (
            f"{phenomena.opening(phenomena.fixed(criteria))}. Differences of scores in points with Tango's 95 % "
            "interval, speedups with bootstrap intervals over documents, shares with Wilson's; "
            f"{sizes(records)}, or as the numbers say. "
            "Exploratory but for the first four criteria of the plan."
        )
    return {
        "arithmetic": "A printed number holds where the computed one rounds to its digits. Published tier; the n are "
        "the paper's.",
        "comparison": "Words that name no number (small, flat, close) are read as the entry says. Published tier.",
        "setting": "What the paper states on the left, what this package does unless told otherwise on the right.",
        "full-size": "They stand here so that none is passed over in silence.",
    }[kind]


def marks(labels: Sequence[str] = ledger_tables.TABLES_WITH_MARKS) -> Table:
    """Bold and underline per table, and every mark that is wrong, missing or left out on a tie."""
    rows = []
    for label in labels:
        found = ledger_tables.marks(label)
        count = found["status"].value_counts()
        detail = ledger_tables.marks_right(label).detail.partition("; ")[2]
        rows.append(
            {
                "Table": label,
                **{s.capitalize(): count.get(s, 0) for s in ("right", "wrong", "missing", "tied")},
                "Detail": detail.replace("; ", ".\n"),
            }
        )
    caption = (
        "Marks of best and second-best, counted by cell. Right: printed where due; wrong: printed elsewhere; missing: "
        "due and not printed; tied: due to several equal cells and printed at none of them. Published tier."
    )
    return LongTable(pd.DataFrame(rows), caption)


def granularity(labels: Sequence[str] = ledger_tables.TABLES_WITH_SCORES) -> Table:
    """Smallest n whose percentages a column of scores can be."""
    frame = pd.concat([ledger_tables.granularity(label) for label in labels], ignore_index=True)
    shown = pd.DataFrame(
        {
            "Table": frame["table"],
            "Column": frame["column"],
            "Different scores": frame["distinct"],
            "Smallest n": [f"{n:,.0f}" if n == n and n else "none" for n in frame["implied"]],
            "n of the whole benchmark": ["" if n != n or n is None else f"{n:,.0f}" for n in frame["stated"]],
            "Scores that no count of it gives": frame["impossible"],
        }
    )
    caption = (
        "Granularity: the smallest n for which every score of a column is a whole number of n documents, rounded to "
        f"one decimal (searched to {ledger_tables.MOST:,}). It bounds a subset's size from below, and a value above "
        "the whole benchmark rules a single subset out. Published tier; n of the benchmark where the paper states it."
    )
    return LongTable(shown, caption)


def figure(frame: pd.DataFrame) -> Figure:
    """Verdicts per part of the paper, stacked, with their counts; without checks of our own."""
    frame = frame[~frame["ours"]]
    table = frame.assign(part=frame["section"].map(part)).groupby(["part", "status"]).size().unstack(fill_value=0)
    parts = [p for p in PARTS if p in table.index] + [p for p in table.index if p not in PARTS]
    statuses = [s for s in VERDICTS if s in table]
    with plots.style():
        made = Figure(figsize=(7.2, 0.27 * len(parts) + 1.3), layout="constrained")
        axis = made.subplots()
        left = pd.Series(0, index=parts)
        for status in statuses:
            width = table[status].reindex(parts)
            axis.barh(parts, width, left=left, color=COLORS[status], edgecolor="#333333", linewidth=0.5, label=status)
            for row, (start, count) in enumerate(zip(left, width, strict=True)):
                if count:
                    color = "white" if status in DARK else "black"
                    axis.text(start + count / 2, row, str(count), ha="center", va="center", color=color, fontsize=6.5)
            left += width
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("Claims of the paper's prose")
        axis.set_title(f"Verdicts by part of the paper (n = {len(frame)} claims)", loc="left")
        made.legend(loc="outside lower center", ncols=4)
    return made


def checks(frame: pd.DataFrame, entries: Iterable[Entry]) -> Table:
    """What the tables rest on."""
    from jot.analysis import phenomena

    entries = list(entries)
    planned = [*ledger.FIRST, *phenomena.plan()["id"]]
    used = [entry.criterion for entry in entries if entry.criterion]
    judged = frame[frame["kind"] == "phenomenon"]
    known = {"arithmetic": {"holds", "fails"}, "comparison": {"holds", "fails"}, "setting": {"holds", "fails"}}
    strange = [r.id for r in frame.itertuples() if r.kind in known and r.status not in known[r.kind]]
    silent = frame[frame["status"].isin(["fails", "not seen"]) & (frame["detail"] == "")]
    outside = [entry.id for entry in entries if part(entry.section) not in PARTS]
    rows = [
        ("Every entry has a verdict", len(frame) == len(entries) and not strange, f"{len(frame)} entries"),
        (
            "Every criterion of the plan is looked for, once",
            sorted(used) == sorted(planned),
            f"{len(planned)} criteria",
        ),
        ("At least 15 phenomena have a criterion", len(judged) >= 15, f"{len(judged)} phenomena"),
        (
            "Every failure tells its numbers",
            silent.empty,
            f"{frame['status'].isin(['fails', 'not seen']).sum()} failures",
        ),
        ("Every entry belongs to a part of the paper", not outside, f"{len(PARTS)} parts"),
    ]
    shown = pd.DataFrame(
        {
            "Statement": [r[0] for r in rows],
            "Holds": ["yes" if r[1] else "no" for r in rows],
            "Over": [r[2] for r in rows],
        }
    )
    return Table(shown, "Checks of the ledger.")
