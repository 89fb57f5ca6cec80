"""The tables of layer c of ``07_flip_bound``: budgets of JoT as decoded, and what came of its commits."""

from __future__ import annotations

import pandas as pd

from jot.analysis import render
from jot.analysis.bound_view import BOOT, percent
from jot.analysis.spelling import of
from jot.paper.show import Note, Table


def _count(row: pd.Series, name: str) -> str:
    return of(row, name, 2)


def _decoded_scope(frame: pd.DataFrame) -> str:
    tiers = render.tiers(frame["model"])
    return f"{tiers[:1].upper()}{tiers[1:]}; JoT (γ, D and τ_min at their defaults) with traces, n test documents a row"


def budgets(frame: pd.DataFrame) -> Table | Note:
    """Budgets per document of JoT as decoded."""
    shown = frame[frame["n"] > 0] if len(frame) else frame
    if not len(shown):
        return Note("No decoded cell with traces is recorded for these models and tasks.")
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "τ_max": f"{r['tau']:g}",
            "n": f"{r['n']:,}",
            "Exits": f"{r['exits']:.1f}",
            "Σ 2/(1+τᵢ), exits": _count(r, "by_threshold"),
            "Σ 2/(1+rᵢ), exits": _count(r, "by_ratio"),
            "2L/(1+τ_max)": f"{r['paper']:.2f}",
            "Documents above it, %": percent(r["uncovered"], 1),
            "Smallest τᵢ": f"{r['lowest']:.3g}",
            "Exits at τᵢ = 1, %": percent(r["ones"]),
            "Scheduled": f"{r['scheduled']:.2f}",
            "Σ 2/(1+rᵢ), scheduled": _count(r, "scheduled_ratio"),
        }
        for _, r in shown.iterrows()
    ]
    missing = [f"{r['model']}, {r['task']}, τ_max = {r['tau']:g}" for _, r in frame[frame["n"] == 0].iterrows()]
    return Table(
        pd.DataFrame(rows),
        f"Layer c: reversal budgets of JoT as decoded, means per document. {_decoded_scope(shown)}. Each sum takes "
        f"min(1, 2/(1+x)) a commit; intervals: {BOOT}. Exits: positions that cleared their own threshold τᵢ, whether "
        "or not the schedule took them too; scheduled: committed by the schedule alone, below their threshold, so that "
        "only their ratio says anything. A budget is an expectation over leading-pair reversals, given that the true "
        "token is in the pair; it holds for no single document and says nothing of the answer. Documents above it: "
        "share whose own sum over exits exceeds the paper's 2L/(1+τ_max), which puts τ_max where τᵢ belongs."
        + (f" Not recorded: {'; '.join(missing)}." if missing else ""),
    )


def hindsight(frame: pd.DataFrame) -> Table | Note:
    """Tokens that differ from full decoding's, as a description."""
    if not len(frame):
        return Note("No pair of JoT and full decoding with traces is recorded for these models and tasks.")
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "τ_max": f"{r['tau']:g}",
            "n": f"{r['n']:,}",
            "Positions that differ": _count(r, "differing"),
            "Of the exits, %": percent(r["differing_exits"]),
            "Of the scheduled, %": percent(r["differing_scheduled"], 1),
            "Documents with any, %": percent(r["documents"], 1),
            "Earliest were exits, %": percent(r["first_exit"], 1),
            "Positions in such a document": "" if pd.isna(r["spread"]) else f"{r['spread']:.1f}",
        }
        for _, r in frame.iterrows()
    ]
    return Table(
        pd.DataFrame(rows),
        f"Layer c: in hindsight, positions whose token differs from full decoding's on the same document. "
        f"{_decoded_scope(frame)}. Description only: no bound is about this. One early difference shifts what follows "
        "it, full decoding is not the truth, and a model that samples differs from itself. Intervals of the first "
        f"column: {BOOT}. Earliest were exits: share of the documents with a difference in which every first commit "
        "that differs was an exit.",
    )
