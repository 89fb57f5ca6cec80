"""The frames of ``failures``, ``failure_modes`` and ``divergence`` as tables and sentences."""

from __future__ import annotations

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import cells, divergence, draws, failures, published, render, spelling, tables
from jot.analysis.failures import Runs
from jot.paper import modes as failure_modes
from jot.paper.show import Note, Table

PAPER_TIER = "Published: the paper's Dream-7B on GSM8K, n = 500, another tier."
BY = {"speedup": "achieved speedup", "margin": "mean margin at full decoding's first step"}


def paper() -> pd.DataFrame:
    """The paper's numbers on failures, from its prose: place, quantity, tau_max, value."""
    return pd.read_csv(published.folder() / "failure_analysis.csv")


def printed(quantity: str, tau: float | None = None) -> float | None:
    frame = paper()
    hit = frame[(frame["quantity"] == quantity) & (frame["tau_max"].isna() if tau is None else frame["tau_max"] == tau)]
    return None if hit.empty else float(hit["value"].iloc[0])


def interval(row: pd.Series, name: str, digits: int = 1, sign: str = "") -> str:
    return spelling.of(row, name, digits, sign, comma=",\u00a0")


def scope(runs: Runs, n: int | None = None) -> str:
    frame = pd.DataFrame({"model": [runs.model], "task": [runs.task], "n": [runs.full.n if n is None else n]})
    return f"{runs.model}. {render.scope(frame)}"


def _share(row: pd.Series, name: str) -> str:
    """A share with its interval, or the value alone and why it is no evidence."""
    return f"{row[name]:g}\n{draws.DEGENERATE}" if row["degenerate"] else interval(row, name)


# --- tables -------------------------------------------------------------------------------------------------


def outcomes(runs: Runs, frame: pd.DataFrame) -> Table:
    """Paired outcomes at the planned and at the paper's number of documents, with the paper's own rows."""
    rows = [
        {
            "Run": r["run"],
            "n": f"{r['n']:,}",
            "Score, %": interval(r, "score"),
            "Speedup, ×": f"{r['speedup']:.2f}",
            "Difference, points": draws.DEGENERATE if r["degenerate"] else render._points(r),
            "Repairs b": str(r["b"]),
            "Breaks c": str(r["c"]),
            "Exact p": "" if r["degenerate"] else render.pvalue(r["p"]),
            "Mid-p": "" if r["degenerate"] else render.pvalue(r["midp"]),
            "Repairs, %": _share(r, "repairs"),
            "Breaks, %": _share(r, "breaks"),
        }
        for _, r in frame.iterrows()
    ]
    for tau in (90, 30):
        p = printed("p", tau)
        rows.append(
            {
                "Run": f"Published: JoT, τ = {tau}",
                "n": f"{printed('samples'):.0f}",
                "Score, %": f"{printed('score', tau):.1f}",
                "Speedup, ×": f"{printed('speedup', tau):.2f}",
                "Difference, points": f"{printed('difference', tau):+.1f}",
                "Exact p": f"≈ {p:g}" if p else f"< {printed('p_below', tau):.0e}",
                "Repairs, %": f"{printed('repairs', tau):.1f}",
            }
        )
    score, n = tables.score(runs.full), failures.PAPER_N
    first = f"Rows with n = {n} are the first {n} of the fixed order, the paper's sample size. "
    first = first if runs.full.n > n else ""
    seeds = frame["run"].str.startswith("full").any()
    noise = "Rows of full decoding under another seed are the noise floor. " if seeds else ""
    return Table(
        pd.DataFrame(rows).fillna(""),
        f"Paired with full decoding. {scope(runs)}; full decoding scores "
        f"{spelling.interval(*score, unit=' %', gap=' ')}. {first}Repairs: only the run is right; breaks: only full "
        f"decoding is. Scores and shares: {render.WILSON}; difference: run minus full decoding, {render.TANGO}; "
        f"McNemar, exact and mid-p. {noise}{PAPER_TIER}",
    )


def agreement(runs: Runs, frame: pd.DataFrame) -> Table:
    """Two agreements with full decoding, of outcomes and of final answers; all tokens beside them."""
    rows = [
        {
            "Run": r["run"],
            "n": f"{r['n']:,}",
            "Same outcome, %": _share(r, "outcomes"),
            "Same final answer, %": _share(r, "answers"),
            "Same tokens throughout, %": _share(r, "tokens"),
        }
        for _, r in frame.iterrows()
    ]
    rows += [
        {
            "Run": f"Published: JoT, τ = {tau}",
            "n": f"{printed('samples'):.0f}",
            "Same outcome, %": f"{printed('agreement', tau):.1f}",
        }
        for tau in (90, 30)
    ]
    return Table(
        pd.DataFrame(rows).fillna(""),
        f"Agreement with full decoding. {scope(runs)}. Shares of documents, {render.WILSON}. Two wrong answers count "
        "as the same outcome, also when they differ. The paper prints its figures as final-answer agreement; they "
        "equal its outcome agreement (one minus the share of repairs and breaks), so they stand in that column. "
        f"{PAPER_TIER}",
    )


def noise(runs: Runs, frame: pd.DataFrame) -> Note:
    """How much full decoding differs from itself, and why."""
    seeds = frame[frame["run"].str.startswith("full") & (frame["n"] == frame["n"].max())]
    if seeds.empty:
        heat = cells.standard_decoding(cells.family(runs.full.config), runs.task)["temperature"]
        none = "Full decoding under further seeds is not recorded." if heat else f"{runs.model} is greedy: it has none."
        return Note(f"**Noise floor.** {none}")
    flips = ", ".join(f"{r['b'] + r['c']} of {r['n']:,}" for _, r in seeds.iterrows())
    text = f"**Noise floor.** Full decoding against itself under other seeds: outcomes differ on {flips} documents. "
    if seeds["degenerate"].all():
        text += f"That is **{draws.DEGENERATE}**, and says nothing of how stable the outcomes are. "
    if (edge := draws.edge(runs.traced.get("full"))) is not None:
        drawn = "they sometimes drew a token at random."
        if edge.clear:
            drawn = "they never drew a token at random, because the entropy ranking leaves such positions until the "
            drawn += "others decide them."
        text += (
            f"At this temperature and nucleus the runner-up of two candidates can be drawn only at margins up to "
            f"{edge.gap:.4f} nats; the smallest margin among the commits of the {edge.n:,} traced runs is "
            f"{edge.smallest:.4f}: {drawn}"
        )
    return Note(text)


def fifths(runs: Runs, frame: pd.DataFrame, by: str = "speedup") -> Table | Note:
    """Errors per fifth of the documents."""
    frame = frame[frame["by"] == by]
    if frame.empty:
        return Note("The traced runs that this table needs are not recorded.")
    rows, beside = [], by == "speedup" and same_family(runs)
    for _, r in frame.iterrows():
        paper_error = printed(f"error_q{r['fifth']}", r["tau"]) if beside else None
        rows.append(
            {
                "τ": f"{r['tau']:g}",
                "Fifth": f"Q{r['fifth']}",
                "n": f"{r['n']:,}",
                "Steps": f"{r['steps_low']} to {r['steps_high']}",
                "Speedup, ×" if by == "speedup" else "Margin, nats": f"{r['low']:.1f} to {r['high']:.1f}",
                "JoT error, %": interval(r, "jot"),
                "Full error, %": interval(r, "full"),
                "JoT minus full, score points": interval(r, "difference", sign="+"),
                "Median length": f"{r['length']:g}",
                **({"Published JoT error, %": f"{paper_error:g}" if paper_error else ""} if beside else {}),
            }
        )
    n = int(frame.groupby("tau")["n"].sum().max())
    what = (
        "Q1 slowest to Q5 fastest, which sorts by what JoT itself did" if by == "speedup"
        else "Q1 lowest to Q5 highest, known before JoT runs"
    )  # fmt: skip
    return Table(
        pd.DataFrame(rows),
        f"Errors by fifths of {BY[by]}: {what}. {scope(runs, n)}. Equal groups; {_ties(frame, BY[by])}. Errors: "
        f"{render.WILSON}; difference of scores: {render.TANGO}. Length: tokens before the end mark under JoT. "
        "Description, no test." + (f" {PAPER_TIER}" if beside else ""),
    )


def _ties(frame: pd.DataFrame, what: str) -> str:
    """How many documents sit on an edge that cuts through a tie, for the caption."""
    cut = frame.groupby("tau", sort=False)[["tied", "n"]].sum()
    if not cut["tied"].any():
        return "no edge cuts through a tie"
    told = "; ".join(f"τ = {tau:g}: {r['tied']:,} of {r['n']:,}" for tau, r in cut.iterrows())
    return (
        f"edges cut through ties of the {what}, and documents of equal value are then placed by their id, not by "
        f"anything about them (documents on such an edge, {told})"
    )


def same_family(runs: Runs) -> bool:
    return cells.family(runs.full.config) == "dream"


def trend(runs: Runs, frame: pd.DataFrame) -> Table:
    """One trend test per grouping, with length as a covariate."""
    units = {"speedup": "per doubling of the speedup", "margin": "per nat"}
    rows = [
        {
            "τ": f"{r['tau']:g}",
            "JoT's errors on": f"{BY[r['by']]}, {units[r['by']]}",
            "n": f"{r['n']:,}",
            "Odds ratio": "not estimable" if pd.isna(r["odds"]) else interval(r, "odds", 2),
            "p": render.pvalue(r["p"]),
            "Odds ratio of one more token": "" if pd.isna(r["odds"]) else f"{r['length_odds']:.3f}",
            "Its p": render.pvalue(r["length_p"]),
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"Trend of JoT's errors, logistic regression with the length of JoT's answer beside it. {scope(runs)}; n of "
        "each row. Wald 95 % intervals and p, not adjusted. Exploratory: an association, not a cause.",
    )


def modes(runs: Runs, frame: pd.DataFrame) -> Table:
    """Rate of each failure mode under every run."""
    rows = [
        {
            "Run": "Full decoding" if r["run"] == "full" else r["run"],
            "Mode": f"{r['mode']}\n{failure_modes.MEANING[r['mode']]}",
            "n": f"{r['n']:,}",
            "Documents": r["count"],
            "Rate, %": interval(r, "rate"),
            "Of the wrong outputs, %": interval(r, "of_wrong"),
            "Right under the other": r["other_right"],
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"Failure modes as the finder sees them. {scope(runs)}. Every wrong output has one mode, tried in the order "
        f"anchor, overrun, branch, other. Shares: {render.WILSON}. Right under the other: of these documents, those "
        f"that full decoding gets right, or, for full decoding's own, JoT at τ = {next(iter(runs.jot)):g}. The paper "
        "names branch and anchor and gives no rates.",
    )


def by_rule(runs: Runs, frame: pd.DataFrame) -> Table | Note:
    """Which rule committed the first differing token."""
    if frame.empty:
        return Note("The traced runs that this table needs are not recorded.")
    rows = [
        {
            "τ": f"{r['tau']:g}",
            "Committed by": r["rule"],
            "First differences": r["count"],
            "Share, %": interval(r, "share"),
            "Of all answer tokens, %": f"{r['all']:.1f}",
            "In breaks": r["break"],
            "In repairs": r["repair"],
            "Both right": r["both right"],
            "Both wrong": r["both wrong"],
            "A number": r["numbers"],
            "An operator": r["operators"],
            "Median margin, nats": "" if pd.isna(r["margin"]) else f"{r['margin']:.2f}",
            "Median threshold": "" if pd.isna(r["threshold"]) else f"{r['threshold']:.2f}",
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        "First position, left to right, where the outputs of JoT and full decoding differ, by the rule that "
        f"committed JoT's token. {scope(runs, int(frame['n'].max()))} traced, of which "
        f"{', '.join(f'{g.iloc[0]:,} differ at τ = {t:g}' for t, g in frame.groupby('tau', sort=False)['different'])}. "
        f"Shares of the differing documents: {render.WILSON}; beside them that rule's share of all tokens before the "
        "end mark. Margin: gap of the two largest logits at the commit; threshold: ln τ at that position then.",
    )


def examples(runs: Runs, frame: pd.DataFrame) -> Table | Note:
    """One break per mode, in full."""
    if frame.empty:
        return Note("No traced break to show: none is recorded, or JoT breaks no document here.")
    rows = [
        {
            "Mode": r["mode"],
            "Question": f"{r['question']}\n{r['doc_id']}",
            "Full decoding": r["full"],
            "JoT": r["jot"],
            "Parts at": f"{r['token']!r} for {r['other']!r}\n{divergence.RULES[r['rule']]}, step "
            f"{r['step'] + 1}, margin {r['margin']:.2f}, threshold {r['threshold']:.2f} nats",
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"The first break of each mode in the fixed order, JoT at τ = {frame['tau'].iloc[0]:g}. "
        f"{scope(runs, int(frame['n'].iloc[0]))} traced. Full decoding is right on all of them. A mode without a "
        "break has no row.",
    )


def finder(frame: pd.DataFrame) -> Table:
    """The finder against the hand labels."""
    frame_quality, kappa = failure_modes.quality(frame), failure_modes.kappa(frame)
    agree = int((frame["label"] == frame["found"]).sum())
    low, high = (100 * x for x in stats.wilson(agree, len(frame)))
    rows = [
        {
            "Mode": f"{r['mode']}\n{failure_modes.MEANING[r['mode']]}",
            "By hand": r["hand"],
            "By the finder": r["found"],
            "By both": r["both"],
            "Precision, %": interval(r, "precision"),
            "Recall, %": interval(r, "recall"),
        }
        for _, r in frame_quality.iterrows()
    ]
    models = ", ".join(f"{n} of {m}" for m, n in frame["model"].value_counts(sort=False).items())
    shown = "not defined" if np.isnan(kappa.value) else f"{kappa.value:.2f} [{kappa.low:.2f}, {kappa.high:.2f}]"
    return Table(
        pd.DataFrame(rows),
        f"Finder against one reader's labels. Embedded tier, 5 M parameters; n = {len(frame)} wrong outputs of "
        f"pocket_gsm8k ({models}), a fixed random draw over full decoding and JoT. Same mode in {agree}: "
        f"{100 * agree / len(frame):.0f} % [{low:.0f}, {high:.0f}]; Cohen's kappa {shown} (asymptotic). Precision "
        f"and recall: {render.WILSON}. Labels were written from the texts before the finder was run on them.",
    )
