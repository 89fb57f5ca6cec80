"""The frames of ``tables`` as captioned tables and sentences; what a notebook shows is written here."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from jot import stats
from jot.analysis import cells, plan, spelling
from jot.paper.show import Note, Table

WILSON = "Wilson 95 % interval"
BOOT = f"95 % percentile bootstrap over documents, {stats.N_BOOT:,} resamples shared across methods"
TANGO = "Tango 95 % score interval"


def tier(model: str) -> str:
    """Which tier of evidence a model belongs to; every caption says so."""
    return "embedded tier, 5 M parameters" if model.startswith("pocket-") else "full-size tier"


def tiers(models: Iterable[str]) -> str:
    """The tiers of several models, each once, in their order."""
    return " and ".join(dict.fromkeys(map(tier, models)))


def counts(frame: pd.DataFrame) -> str:
    """``n = 2,000 pocket_gsm8k, 1,000 pocket_humaneval``; a range where models differ."""
    parts = []
    for task, group in frame.groupby("task", sort=False):
        low, high = group["n"].min(), group["n"].max()
        parts.append((f"{low:,}" if low == high else f"{low:,} to {high:,}") + f" {task}")
    return "n = " + ", ".join(parts)


def scope(frame: pd.DataFrame) -> str:
    """Tier and n of a frame, for its caption."""
    shown = tiers(frame["model"])
    return f"{shown[:1].upper()}{shown[1:]}; {counts(frame)}"


def method_label(method: str, tau: float | None) -> str:
    name = cells.LABELS.get(method, method)
    return name if tau is None or pd.isna(tau) else f"{name}, τ = {tau:g}"


def pvalue(p: float) -> str:
    return "" if pd.isna(p) else f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def forwards(row: pd.Series) -> str:
    """Forwards per document by kind, where there is more than one kind."""
    parts = [row.get(f"forwards_{kind}", 0) for kind in ("full", "suffix", "block")]
    return " / ".join(f"{x:.1f}" for x in parts) if any(parts[1:]) else ""


def _points(row: pd.Series, prefix: str = "") -> str:
    value, low, high = (row.get(f"{prefix}{k}") for k in ("difference", "low", "high"))
    return "" if value is None or pd.isna(value) else spelling.interval(value, low, high, sign="+")


def _marked(text: str, mark: str) -> str:
    """The first line of a cell in bold or underlined."""
    value, *limits = text.split("\n")
    return "\n".join([{"best": f"**{value}**", "second": f"__{value}__"}.get(mark, value), *limits])


# --- tables -------------------------------------------------------------------------------------------------


def main(frame: pd.DataFrame, published: pd.DataFrame | None = None) -> Table:
    """Table 1: model x method against tasks; ``published`` adds the paper's rows (see ``published_rows``)."""
    tasks = list(dict.fromkeys(frame["task"]))
    rows = []
    for (model, method), group in sorted(frame.groupby(["model", "method"], sort=False), key=_row_order(frame)):
        taus = [t for t in group["tau"].dropna().unique()]
        at = group.set_index("task")
        row = {
            ("", "Model"): model,
            ("", "Method"): method_label(method, taus[0] if len(taus) == 1 else None),
        }
        for task in tasks:
            cell = at.loc[task] if task in at.index else None
            if cell is None:
                row[task, "Score, %"] = "" if method in ("calibrated", "prophet-answer") else "not recorded"
                row[task, "Speedup, ×"] = ""
                continue
            varies = f"\nτ = {cell['tau']:g}" if len(taus) > 1 else ""
            row[task, "Score, %"] = _marked(spelling.of(cell, "score"), cell["score_mark"]) + varies
            speed = f"{cell['speedup']:.2f}" if method == "full" else spelling.of(cell, "speedup", 2)
            row[task, "Speedup, ×"] = _marked(speed, cell["speedup_mark"])
        rows.append(row)
    for _, group in published.groupby(["model", "method"], sort=False) if published is not None else ():
        at = group.set_index("task")
        method = at["method"].iloc[0]
        row = {
            ("", "Model"): f"{at['model'].iloc[0]} (published)",
            ("", "Method"): cells.PUBLISHED.get(method, method),
        }
        for task in tasks:
            row[task, "Score, %"] = f"{at.loc[task, 'score']:.1f}" if task in at.index else ""
            row[task, "Speedup, ×"] = f"{at.loc[task, 'speedup']:.2f}" if task in at.index else ""
        rows.append(row)
    caption = (
        f"Score and step speedup. {scope(frame)}. Score: {WILSON}. "
        f"Speedup: configured over actual steps, ratio of sums; {BOOT}. "
        "Bold: best of its model and task, only where the interval of the paired difference to the next excludes zero; "
        "underlined: second, by the same rule, so a best that cannot be told from the second has no mark. "
        "Where a cache is used, every forward counts as one, whatever it covers."
    )
    if variants := [m for m in cells.VARIANTS if (frame["method"] == m).any()]:
        names = ", ".join(cells.LABELS[m] for m in variants)
        caption += f" Variants, below the methods as published and without marks: {names}."
    if published is not None:
        caption += " Published: the paper's rows for 7B and 8B models on the real benchmarks, another tier."
    table = pd.DataFrame(rows)
    table.columns = pd.MultiIndex.from_tuples(table.columns)
    return Table(table, caption)


def _row_order(frame: pd.DataFrame):
    """Sort key of ((model, method), rows): models as they come, methods in the table's order."""
    models = list(dict.fromkeys(frame["model"]))
    return lambda item: (models.index(item[0][0]), cells.ALL.index(item[0][1]))


def paired(frame: pd.DataFrame, margin: float = stats.MARGIN) -> Table:
    """JoT against full decoding, paired by document."""
    shown = int((frame["method"] == "jot").sum())
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "Method": method_label(r["method"], r["tau"]),
            "n": f"{r['n']:,}",
            "Repairs b": r["b"],
            "Breaks c": r["c"],
            "Exact p": pvalue(r["p"]),
            "Mid-p": pvalue(r["midp"]),
            "Holm p": pvalue(r["holm"]),
            "Difference, points": _points(r),
            "Verdict": r["verdict"],
            "Smallest margin": f"{r['smallest_margin']:.2f}",
        }
        for _, r in frame.iterrows()
    ]
    caption = (
        f"Paired comparison with full decoding. {scope(frame)}. "
        "Repairs: only JoT right; breaks: only full decoding right. McNemar, exact and mid-p; "
        f"Holm over the {shown} default comparisons shown (the plan's family has {cells.CONFIRMATORY}). "
        f"Difference: method minus full decoding, {TANGO}. "
        f"Verdict at a margin of {margin:g} points, the paper's own, chosen after its results; beside it the "
        "smallest margin that would pass. Calibrated rows are secondary and carry no adjusted p."
    )
    return Table(pd.DataFrame(rows), caption)


def secondary(frame: pd.DataFrame) -> Table:
    """JoT against each other early-exit method."""
    if frame.empty:
        return Table(pd.DataFrame(), "Secondary family: JoT and another early-exit method are not both recorded here.")
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "JoT against": cells.LABELS[r["against"]],
            "n": f"{r['n']:,}",
            "Only JoT right b": r["b"],
            "Only the other right c": r["c"],
            "Exact p": pvalue(r["p"]),
            "Holm p": pvalue(r["holm"]),
            "JoT minus the other, points": _points(r),
            "Speedup of JoT over the other's": spelling.of(r, "ratio", 2),
            "The other minus full decoding, points": _points(r, "full_"),
        }
        for _, r in frame.iterrows()
    ]
    sizes = ", ".join(f"{n} of {len(cells.BASELINES) * len(cells.TASKS)} recorded for {model}"
                      for model, n in frame.groupby("model", sort=False).size().items())  # fmt: skip
    caption = (
        f"Secondary family: JoT at its default against each other early-exit method. {scope(frame)}. McNemar, "
        f"exact; Holm within each model over the comparisons shown ({sizes}). Differences: {TANGO}, not adjusted. "
        f"Ratio of speedups: {BOOT}; every forward counts as one, in-block forwards of Fast-dLLM too. The last "
        "column is exploratory."
    )
    return Table(pd.DataFrame(rows), caption)


def decomposition(frame: pd.DataFrame) -> Table:
    """Where the speedup comes from."""
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "Method": method_label(r["method"], r["tau"]),
            "n": f"{r['n']:,}",
            "Speedup, ratio of sums": f"{r['ratio']:.2f}",
            "Mean of ratios": f"{r['mean_of_ratios']:.2f}",
            "Tokens per forward": f"{r['tokens_per_forward']:.2f}",
            "Padding factor": f"{r['padding_factor']:.2f}",
            "Steps": f"{r['steps']:.1f}",
            "Forwards full / suffix / in-block": forwards(r),
            "Non-EOS tokens": f"{r['non_eos']:.1f}",
            "Empty, %": f"{r['empty']:.1f}",
        }
        for _, r in frame.iterrows()
    ]
    caption = (
        f"Speedup split. {scope(frame)}. Ratio of sums = tokens per forward (non-EOS tokens over forwards) × "
        "padding factor (canvas length over non-EOS tokens): the second factor is the canvas tail, not the "
        "method. Steps and non-EOS tokens are means per document. Where a cache is used, the forwards are split into "
        "those over the whole canvas, from a block to the canvas's end, and inside a block; the speedup counts every "
        "one of them as one, though an in-block forward covers a block alone."
    )
    return Table(pd.DataFrame(rows), caption)


def calibration(frame: pd.DataFrame, margin: float = stats.MARGIN) -> Table:
    """Threshold chosen on dev, and what choosing on test would have claimed."""

    def chosen(row: pd.Series, split: str) -> str:
        if not row[f"{split}_complete"]:
            return "grid not recorded"
        return "none passes" if pd.isna(row[f"{split}_tau"]) else f"{row[f'{split}_tau']:g}"

    def speed(row: pd.Series, split: str) -> str:
        value = row.get(f"{split}_speedup")
        return "" if value is None or pd.isna(value) else f"{value:.2f}"

    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "Default τ": f"{r['default']:g}",
            "τ chosen on dev": chosen(r, "dev"),
            "Test difference, points": _points(r, "dev_"),
            "Speedup, ×": speed(r, "dev"),
            "τ chosen on test": chosen(r, "test"),
            "Would have claimed": _points(r, "test_"),
            "At speedup, ×": speed(r, "test"),
        }
        for _, r in frame.iterrows()
    ]
    caption = (
        f"Calibration. The smallest τ of {', '.join(f'{t:g}' for t in cells.TAUS)} whose lower paired limit "
        f"({TANGO}) stays above -{margin:g} points, chosen on the dev split and reported on the test split; "
        "right: the same rule applied to the test split itself, as the paper selects its thresholds."
    )
    return Table(pd.DataFrame(rows), caption)


def aggregate(frame: pd.DataFrame) -> Table:
    """Geometric means over tasks with the leave-one-task-out values."""
    rows = []
    if len(frame):
        frame = frame.sort_values("method", key=lambda m: m.map(cells.ALL.index), kind="stable")
        frame = frame.sort_values("model", key=lambda m: m.map(list(dict.fromkeys(m)).index), kind="stable")
    for _, r in frame.iterrows():
        left_out = [f"{v:.2f} {k}" for k, v in r.items() if str(k).startswith("without ") and pd.notna(v)]
        rows.append(
            {
                "Model": r["model"],
                "Method": cells.LABELS.get(r["method"], r["method"]),
                "Tasks": r["tasks"],
                "Geometric-mean speedup, ×": f"{r['geometric_mean']:.2f}",
                "Leaving one task out": "; ".join(left_out),
                "Retention, %": f"{r['retention']:.1f}",
            }
        )
    return Table(
        pd.DataFrame(rows),
        "Aggregates as in the paper's Figure 1: geometric mean of the speedups and mean ratio "
        "of scores to full decoding, over tasks. Descriptive, no interval.",
    )


def checks(frame: pd.DataFrame) -> Table:
    """The statements of ``plan.checks``."""
    rows = [
        {"Statement": r["statement"], "": "holds" if r["holds"] else "**does not hold**", "Over": r["detail"]}
        for _, r in frame.iterrows()
    ]
    return Table(pd.DataFrame(rows), "Checks of the tables above.")


def verdicts(
    paired_frame: pd.DataFrame, main_frame: pd.DataFrame, claims: pd.DataFrame, margin: float = stats.MARGIN,
    others: pd.DataFrame | None = None,
) -> Note:  # fmt: skip
    """The verdict at the head of the notebook: the plan's claims, then verdicts and speedups per model.

    ``others``: from ``tables.secondary``; a line per model on the secondary family.
    """
    default = paired_frame[paired_frame["method"] == "jot"]
    if default.empty:
        return Note("**Verdict.** No pair of JoT at its default and full decoding is among these records.")
    passed = int(default["verdict"].isin(plan.PASSED).sum())
    within = int(((default["low"] > -margin) & (default["high"] < margin)).sum())
    lines = [
        f"**Verdict.** JoT at its default loses less than {margin:g} points against full decoding, by the interval's "
        f"lower limit, in {passed} of {len(default)} comparisons; in {within} of them the whole interval lies within "
        f"{margin:g} points. {scope(default)}. Seen or not seen at this scale only.",
        "",
    ]
    lines += [f"- {r['claim']}: **{r['status']}** ({r['detail'] or 'not recorded'})" for _, r in claims.iterrows()]
    for model, group in default.groupby("model", sort=False):
        speeds = main_frame[(main_frame["model"] == model) & (main_frame["method"] == "jot")]["speedup"]
        named = "; ".join(f"{v}: {', '.join(g['task'])}" for v, g in group.groupby("verdict", sort=False))
        lines.append(
            f"- {model}: {named}; step speedup {speeds.min():.2f}× to {speeds.max():.2f}×, "
            f"differences {group['difference'].min():+.1f} to {group['difference'].max():+.1f} points"
        )
    lost = [r for _, r in default.iterrows() if r["holm"] < stats.ALPHA and r["difference"] < 0]
    told = "; ".join(f"{r['model']} {r['task']} {' '.join(_points(r).split())}, {r['verdict']}" for r in lost)
    lines.append(f"- Significantly below full decoding after Holm: {told or 'none'}")
    for model, group in others.groupby("model", sort=False) if others is not None and len(others) else ():
        apart, told = group[group["holm"] < stats.ALPHA], []
        for word, part in (("above", apart[apart["difference"] > 0]), ("below", apart[apart["difference"] < 0])):
            named = ", ".join(f"{cells.LABELS[r['against']]} on {r['task']}" for _, r in part.iterrows())
            told.append(f"{word} in {len(part)} of {len(group)}" + (f" ({named})" if named else ""))
        lines.append(f"- {model}, JoT's score against other early-exit methods (secondary, Holm): {', '.join(told)}")
    return Note("\n".join(lines))


def power(frame: pd.DataFrame, margin: float = stats.MARGIN) -> Table:
    """What each default comparison could have shown, at its n and observed share of discordant pairs."""
    rows = []
    for _, r in frame[frame["method"] == "jot"].iterrows():
        share = (r["b"] + r["c"]) / r["n"]
        seen = stats.mcnemar_power(r["n"], max(share, margin / 100), margin)
        rows.append(
            {
                "Model": r["model"],
                "Task": r["task"],
                "n": f"{r['n']:,}",
                "Discordant, %": f"{100 * share:.1f}",
                "Power, true difference 0": f"{stats.noninferiority_power(r['n'], share, 0, margin):.2f}",
                "Power, true difference -1": _power_at(r["n"], share, -1, margin),
                f"McNemar's power to see -{margin:g}": f"{seen:.2f}",
            }
        )
    return Table(
        pd.DataFrame(rows),
        f"Power of the non-inferiority test at a margin of {margin:g} points (differences in points), "
        "normal approximation of the score test, at the observed share of discordant pairs.",
    )


def _power_at(n: int, share: float, difference: float, margin: float) -> str:
    return f"{stats.noninferiority_power(n, share, difference, margin):.2f}" if share >= abs(difference) / 100 else ""
