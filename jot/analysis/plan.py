"""What ``notebooks/ANALYSIS.md`` fixes in advance, as code: its claims, its positive control, and checks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from jot.analysis import tables
from jot.analysis.cells import CONFIRMATORY, MODELS, PLANNED, Cell, Records, find
from jot.paper.criteria import status

LONG = ("pocket_gsm8k", "pocket_humaneval")
PASSED = ("non-inferior", "worse within the margin")


def control(records: Records, model: str, seed: int = 0) -> dict | None:
    """The positive control: JoT at tau_max 3 without spatial modulation against full decoding, gsm8k dev."""

    def bare(config: Mapping) -> bool:
        return config["method"].get("spatial") is False

    task = "pocket_gsm8k"
    harmed = find(records, model, task, "jot", tau=3, split="dev", seed=seed, accept=bare)
    full = find(records, model, task, split="dev", seed=seed)
    return tables.compare(harmed, full) if harmed and full else None


def claims(records: Records, frame: pd.DataFrame, comparisons: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The plan's four claims: "seen", "not seen", "undecided", or "not shown" where cells are missing."""
    default = comparisons[comparisons["method"] == "jot"]
    speeds = frame[frame["method"] == "jot"]
    passed = int(default["verdict"].isin(PASSED).sum())
    worse = int((default["verdict"] == "inferior beyond the margin").sum())
    above = speeds["speedup_low"] > 1
    apart, reversed_order = [], []
    for _, group in speeds.groupby("model"):
        long = group[group["task"].isin(LONG)]
        short = group[~group["task"].isin(LONG)]
        apart.append(long["speedup_low"].min() > short["speedup_high"].max())
        reversed_order.append(short["speedup_low"].max() > long["speedup_high"].min())
    harm = [control(records, model, seed) for model in MODELS]
    harmed = [bool(h and h["p"] < 0.01 and h["difference"] < 0) for h in harm]
    whole = len(default) == CONFIRMATORY
    rows = [
        ("Scores stay within the margin on most benchmarks", whole, passed >= 5, worse >= 4,
         f"{passed} of {len(default)} lose less, {worse} more, by interval"),
        ("Fewer steps on every benchmark", whole, above.all(), (speeds["speedup_high"] < 1.05).any(),
         f"{int(above.sum())} of {len(speeds)} lower limits above 1"),
        ("Most of all on long generations", whole, all(apart), any(reversed_order),
         f"intervals apart in {sum(map(bool, apart))} of {len(apart)} models"),
        ("Too low a threshold does harm (positive control, dev)", all(harm), all(harmed), not any(harmed),
         "; ".join(f"{m}: {h['difference']:+.1f} points, p = {h['p']:.1g}"
                   for m, h in zip(MODELS, harm, strict=True) if h)),
    ]  # fmt: skip
    words = [status(*halves) for _, *halves, _ in rows]
    return pd.DataFrame({"claim": [r[0] for r in rows], "status": words, "detail": [r[4] for r in rows]})


def checks(found: Mapping[tuple[str, str, str], Cell], frame: pd.DataFrame, comparisons: pd.DataFrame) -> pd.DataFrame:
    """What the tables rest on, each as a statement, whether it holds, and the numbers behind it."""
    full = [cell for (_, _, method), cell in found.items() if method == "full"]
    splits = tables.decomposition(found)
    product = splits["tokens_per_forward"] * splits["padding_factor"]
    finite = np.isfinite(product)
    score_of = frame.set_index(["model", "task", "method"])["score"]
    gaps = [
        abs(score_of[r["model"], r["task"], r["method"]] - score_of[r["model"], r["task"], "full"] - r["difference"])
        for _, r in comparisons.iterrows()
    ]
    inside = all(
        ((frame[k] >= frame[f"{k}_low"]) & (frame[k] <= frame[f"{k}_high"])).all() for k in ("score", "speedup")
    )
    short = [f"{t} ({cell.n:,})" for (_, t, _), cell in found.items() if cell.n < PLANNED.get(t, 0)]
    rows = [
        (
            "Full decoding takes every configured step",
            all((c.column("steps") == c.column("configured_steps")).all() for c in full),
            f"{len(full)} cells",
        ),
        (
            "Speedup equals tokens per forward times padding factor",
            bool(np.allclose(product[finite], splits["ratio"][finite])),
            f"{int(finite.sum())} cells",
        ),
        (
            "Paired differences equal the differences of the scores",
            bool(np.allclose(gaps, 0)),
            f"{len(gaps)} pairs, each over the same documents, prompts, weights and hardware",
        ),
        ("Every interval holds its estimate", inside, f"{2 * len(frame)} intervals"),
        ("Every cell has the planned number of documents", not short, ", ".join(dict.fromkeys(short))),
    ]
    return pd.DataFrame(rows, columns=["statement", "holds", "detail"])
