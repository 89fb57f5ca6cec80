"""The ablations as captioned tables and a verdict."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from jot import stats
from jot.analysis import published
from jot.analysis.ablation_frames import published_frame
from jot.analysis.ablations import ABLATIONS, FULL, PHENOMENA, Ablation, Setting, short_task
from jot.analysis.cells import PLANNED, Records
from jot.analysis.phenomena import fixed
from jot.analysis.render import BOOT, TANGO, WILSON, method_label, scope, tier
from jot.analysis.spelling import of
from jot.paper.show import Note, Table

EXPLORATORY = "Exploratory, intervals only."
MISSING = "not recorded"
TOLERANCE = 1e-9
PAPER = "Paper: the printed digits for 7B and 8B models on the real benchmarks, another tier, no intervals"
CLAIMS = {
    "threshold-speed": "A lower threshold is faster (no spatial modulation, both models)",
    "threshold-harm": "τ = 10 costs accuracy on both long tasks (no spatial modulation, Dream)",
    "threshold-high": "τ = 120 and 150 lose less than 3 points against full decoding (gsm8k, no spatial modulation, "
    "Dream)",
    "spatial-speed": "Spatial modulation buys speed on both long tasks (Dream)",
    "spatial-wide": "γ = 0.9 costs accuracy on gsm8k (Dream)",
    "spatial-default": "(0.5, 8) keeps gsm8k accuracy and is faster than no modulation (Dream)",
    "sweep-robust": "The twelve configurations of the sweep hardly differ (gsm8k, Dream)",
    "tau-min": "A floor of 30 brings no benefit (Dream)",
    "after-exit": "`or` and `after_exit` lead to the same scores (ours)",
}
REFERENCE = {
    "threshold": ("full decoding", "the row above"),
    "llada": ("full decoding", "the row above"),
    "spatial": ("no spatial modulation", "no spatial modulation"),
    "sweep": ("the default (90, 0.5, 8)", "the default"),
    "tau_min": ("τmin = 1 at the same γ and D", "τmin = 1"),
}


# --- words --------------------------------------------------------------------------------------------------


def label(ablation: Ablation, setting: Setting) -> str:
    """A row's name: its parameters, those that the table varies."""
    if setting == FULL:
        return "Full decoding"
    if setting.get("spatial") is False and "gamma" in ablation.keys:
        return "No spatial"
    names = {"tau_max": "τ", "gamma": "γ", "window": "D", "tau_min": "τmin"}
    return ", ".join(f"{names[k]} = {setting[k]:g}" for k in ablation.keys)


def tick(ablation: Ablation, setting: Setting) -> str:
    """The same, short, for an axis."""
    if setting.get("spatial") is False and "gamma" in ablation.keys:
        return "none"
    return ", ".join(f"{setting[k]:g}" for k in ablation.keys if k != "tau_min")


def _ours(row: pd.Series | None, name: str, digits: int) -> str:
    return MISSING if row is None or not row["n"] else of(row, name, digits)


def _compared(row: pd.Series, flag: str, name: str, digits: int, sign: str = "") -> str:
    if not row["n"]:
        return ""
    return "reference" if not row[flag] else of(row, name, digits, sign, empty=MISSING)


def _printed(row: pd.Series | None, name: str, form: str, beside: str, beside_form: str) -> str:
    if row is None or pd.isna(row[name]):
        return ""
    return f"{row[name]:{form}}" + ("" if pd.isna(row[beside]) else f"\n{row[beside]:{beside_form}}")


def _at(frame: pd.DataFrame, task: str, row: int) -> pd.Series | None:
    hit = frame[(frame["task"] == task) & (frame["row"] == row)] if len(frame) else frame
    return hit.iloc[0] if len(hit) else None


# --- tables -------------------------------------------------------------------------------------------------


def _grid(ablation: Ablation, ours: pd.DataFrame, paper: pd.DataFrame, speed: bool) -> pd.DataFrame:
    rows = []
    for i, setting in enumerate(ablation.settings):
        row: dict = {("", "Setting"): label(ablation, setting)}
        for task in dict.fromkeys(ours["task"]):
            mine, theirs = _at(ours, task, i), _at(paper, short_task(task), i)
            if speed:
                one = "1.00" if setting == FULL and mine["n"] else _ours(mine, "speedup", 2)
                row[task, "Ours, ×"] = one
                row[task, "Ratio"] = "" if setting == FULL else _compared(mine, "divided", "ratio", 3)
                if len(paper):
                    row[task, "Paper, ×"] = _printed(theirs, "speedup", ".2f", "ratio", ".3f")
            else:
                row[task, "Ours, %"] = _ours(mine, "score", 1)
                row[task, "Δ, points"] = _compared(mine, "compared", "difference", 1, "+")
                if len(paper):
                    row[task, "Paper, %"] = _printed(theirs, "score", ".1f", "difference", "+.1f")
        rows.append(row)
    table = pd.DataFrame(rows)
    table.columns = pd.MultiIndex.from_tuples(table.columns)
    return table


def grids(ablation: Ablation, frame: pd.DataFrame, paper: pd.DataFrame) -> list[Table | Note]:
    """Per model two tables, scores and speedups: rows are settings, columns tasks, the paper's digits beside ours."""
    if frame.empty:
        return [Note(f"{ablation.title}: none of the models and tasks shown belongs to this table.")]
    out: list[Table | Note] = []
    reference, beside = REFERENCE[ablation.id]
    for model, ours in frame.groupby("model", sort=False):
        theirs = paper[paper["family"] == ours["family"].iloc[0]] if len(paper) else paper
        recorded = ours[ours["n"] > 0]
        where = f"{scope(recorded)}." if len(recorded) else f"{tier(model).capitalize()}; {MISSING}."
        named = f"the paper's tab:{ablation.label}" if len(theirs) else "no such table in the paper for this family"
        if ablation.id == "llada":
            named += ", a random subset of unstated size below a full decoding row of the whole set"
        if ablation.id == "tau_min":
            named += ", a random subset of unstated size"
        head = f"{ablation.title}, {model} ({named})"
        compare = f" {PAPER}" if len(theirs) else ""
        score = f"{head}: score. {where} {EXPLORATORY} Score: {WILSON}. Δ: paired difference to {reference}, {TANGO}."
        speed = (f"{head}: step speedup. {where} {EXPLORATORY} Speedup: configured over actual steps, ratio of sums; "
                 f"{BOOT}. Ratio: speedup over that of {beside}, same documents and resamples.")  # fmt: skip
        score += f"{compare}; below, the difference to the same row." if compare else ""
        speed += f"{compare}; below, the ratio to the same row." if compare else ""
        out.append(Table(_grid(ablation, ours, theirs, False), score))
        out.append(Table(_grid(ablation, ours, theirs, True), speed))
    return out


def after_exit(frame: pd.DataFrame) -> Table:
    """`or` against `after_exit`."""
    rows = [
        {
            "Model": r["model"], "Task": r["task"],
            "τ": "" if r["tau"] is None or pd.isna(r["tau"]) else f"{r['tau']:g}",
            "Score with or, %": of(r, "or", 1) if "or" in r else MISSING,
            "Score with after_exit, %": of(r, "after_exit", 1) if "after_exit" in r else MISSING,
            "Δ score, points": of(r, "difference", 1, "+") or MISSING,
            "Steps with or": _steps(r, "or_steps"), "Steps with after_exit": _steps(r, "after_exit_steps"),
            "Δ steps a document": of(r, "steps", 2, "+") or MISSING,
            "Same tokens, %": "" if pd.isna(r["same"]) else f"{r['same']:.1f}",
        }
        for _, r in frame.iterrows()
    ]  # fmt: skip
    caption = (
        f"Exits beside the schedule (“or”, the paper's implementation) or before it (“after_exit”, its algorithm). "
        f"{_scope(frame)} {EXPLORATORY} JoT at its default. Under “or” the schedule's share may fall on positions "
        "that exit anyway; under “after_exit” it is spent on positions that did not clear the threshold. Scores: "
        f"{WILSON}; Δ: after_exit minus or, paired; scores {TANGO}, steps 95 % percentile bootstrap over documents. "
        "Same tokens: documents whose whole canvas is identical."
    )
    return Table(pd.DataFrame(rows), caption)


def _steps(row: pd.Series, name: str) -> str:
    return MISSING if name not in row or pd.isna(row[name]) else f"{row[name]:.2f}"


def _scope(frame: pd.DataFrame) -> str:
    recorded = frame[frame["n"] > 0]
    return f"{scope(recorded)}." if len(recorded) else "Nothing of this is recorded."


def windows(frame: pd.DataFrame) -> Table | Note:
    """Does a wider window change a short answer."""
    if frame.empty:
        return Note("No short task of Dream is among those shown.")
    rows = [
        {
            "Model": r["model"], "Task": r["task"], "γ": f"{r['gamma']:g}", "D": f"{r['wide']} against {r['narrow']}",
            "Same tokens, % of documents": f"{r['same']:.1f}" if r["n"] else MISSING,
            "Same number of steps, %": f"{r['steps']:.1f}" if r["n"] else MISSING,
        }
        for _, r in frame.iterrows()
    ]  # fmt: skip
    caption = (
        f"Windows wider than the answer. {_scope(frame)} JoT, τ = 90. The paper says that on answers of three and five "
        "tokens results coincide whatever D; the prompt counts as resolved, so a wider window reaches further into it."
    )
    return Table(pd.DataFrame(rows), caption)


def precision(frame: pd.DataFrame) -> Table:
    """Logits in bfloat16 against float32."""
    rows = [
        {
            "Model": r["model"], "Task": r["task"], "Method": method_label(r["method"], None),
            "float32, %": of(r, "float32", 1) or MISSING,
            "bfloat16, %": of(r, "bfloat16", 1) or MISSING,
            "Δ score, points": of(r, "difference", 1, "+") or MISSING,
            "Ratio of speedups": "1" if r["method"] == "full" and r["n"] else of(r, "ratio", 3),
            "Documents with the same tokens, %": of(r, "same", 1),
            "Same tokens in the answers, %": "" if pd.isna(r["positions"]) else f"{r['positions']:.2f}",
        }
        for _, r in frame.iterrows()
    ]  # fmt: skip
    caption = (
        f"Precision of the logits that rank and gate. {_scope(frame)} {EXPLORATORY} The weights and the network run "
        f"in float32 in both; only what leaves the head is rounded. Scores and shares: {WILSON}; Δ: bfloat16 minus "
        f"float32, {TANGO}; ratio: bfloat16 over float32, {BOOT}."
    )
    return Table(pd.DataFrame(rows), caption)


def left_to_right(frame: pd.DataFrame) -> Table:
    """How often the schedule takes the leftmost mask."""
    rows = [
        {
            "Model": r["model"], "Task": r["task"],
            "Positions": "whole canvas" if r["part"] == "canvas" else "answer, to its first end of text",
            "float32, %": of(r, "float32", 2) or MISSING,
            "bfloat16, %": of(r, "bfloat16", 2) or MISSING,
            "Δ, points": of(r, "difference", 2, "+") or MISSING,
        }
        for _, r in frame.iterrows()
    ]  # fmt: skip
    caption = (
        f"Left-to-right share under full decoding: scheduled commits that took the leftmost remaining mask. "
        f"{_scope(frame)} {EXPLORATORY} 95 % percentile bootstrap over documents, {stats.N_BOOT:,} resamples. Dream "
        "ranks by entropy after the nucleus is cut: wherever one token fills the nucleus alone the entropy is exactly "
        "zero, such positions tie, and ties go to the lowest position, whatever the precision. LLaDA ranks by the "
        "probability of the whole vocabulary."
    )
    return Table(pd.DataFrame(rows), caption)


def verdict(records: Records) -> Note:
    """The plan's criteria for these tables, evaluated on the records."""
    found = {name: check(records) for name, check in PHENOMENA.items()}
    seen = sum(status == "seen" for status, _ in found.values())
    rows = [{"model": c["model"], "task": c["task"], "n": r.n} for r in records.values() for c in [r.meta["config"]]
            if c["split"] == "test"]  # fmt: skip
    lines = [
        f"**Verdict.** {seen} of {len(found)} statements about ablations are seen; {fixed(found)}. "
        f"{_scope(pd.DataFrame(rows, columns=['model', 'task', 'n']))} {EXPLORATORY} Seen or not seen at "
        "this scale only.",
        "",
    ]
    lines += [f"- {CLAIMS[k]}: **{status}** ({detail})" for k, (status, detail) in found.items()]
    return Note("\n".join(lines))


def checks(ours: Mapping[str, pd.DataFrame], paper: Mapping[str, pd.DataFrame]) -> Table:
    """What the tables rest on."""
    known = {name: frame[frame["n"] > 0] for name, frame in ours.items() if len(frame)}
    pairs, gaps, inside, few, empty = 0, 0, [], [], []
    for name, frame in known.items():
        at = frame.set_index(["model", "task", "row"])["score"]
        settings = ABLATIONS[name].settings
        for _, r in frame[frame["difference"].notna()].iterrows():
            against = settings.index(ABLATIONS[name].reference(settings[r["row"]]))
            pairs += 1
            gaps += abs(r["score"] - at[r["model"], r["task"], against] - r["difference"]) > TOLERANCE
        for k in ("score", "difference", "speedup", "ratio"):
            rows = frame[frame[k].notna()]
            inside += list((rows[k] >= rows[f"{k}_low"] - TOLERANCE) & (rows[k] <= rows[f"{k}_high"] + TOLERANCE))
        few += [f"{t} ({n:,})" for t, n in zip(frame["task"], frame["n"], strict=True) if n < PLANNED.get(t, 0)]
        empty += [f"{ABLATIONS[name].title}: {(ours[name]['n'] == 0).sum()}"] if (ours[name]["n"] == 0).any() else []
    full = [r for frame in known.values() for _, r in frame[frame["method"] == "full"].iterrows()]
    matched = [f"{n}: {len(paper[n])}" for n in paper
               if len(paper[n]) != len(ABLATIONS[n].settings) * len(ABLATIONS[n].tasks)]  # fmt: skip
    rows = [
        ("Full decoding takes every configured step", all(r["speedup"] == 1 for r in full), f"{len(full)} rows"),
        ("Paired differences equal the differences of the scores", gaps == 0, f"{pairs} pairs"),
        ("Every interval holds its estimate", all(inside), f"{len(inside)} intervals"),
        ("Every row of the paper's tables stands beside one of ours", not matched, "; ".join(matched)),
        ("Every cell of the tables is recorded", not empty, "; ".join(empty)),
        ("Every cell has the planned number of documents", not few, ", ".join(dict.fromkeys(few))),
    ]
    table = [{"Statement": s, "": "holds" if ok else "**does not hold**", "Over": over} for s, ok, over in rows]
    return Table(pd.DataFrame(table), "Checks of the tables above.")


def paper_of(ablation_id: str) -> pd.DataFrame:
    """The paper's table in the shape of ours."""
    ablation = ABLATIONS[ablation_id]
    return published_frame(ablation, published.load(ablation.label))
