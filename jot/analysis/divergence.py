"""Where two traced outputs part: the first differing position, the rule that committed it, its margin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from jot.analysis.cells import Cell
from jot.analysis.failures import Runs, share, side_by_side
from jot.analysis.sources import order
from jot.paper import modes as failure_modes
from jot.runs.parameters import home

RULES = {2: "exit alone", 3: "exit and schedule", 1: "schedule alone"}
OUTCOMES = {(1, 0): "repair", (0, 1): "break", (1, 1): "both right", (0, 0): "both wrong"}


def kind(text: str) -> str:
    """What a token is in a worked solution: number, operator, word or end."""
    bare = text.strip()
    if bare.isdigit():
        return "number"
    return "operator" if bare and all(c in "+-*/=" for c in bare) else "end" if bare.startswith("<|") else "other"


def first_differences(jot: Cell, full: Cell, ids: Mapping[int, str]) -> pd.DataFrame:
    """The first position, left to right, at which two traced outputs differ, one row per document that has one.

    Columns: doc_id, position, rule (1 schedule, 2 exit, 3 both), step, margin, threshold (nats), token and
    other (texts under JoT and full decoding), kind of ``token``, outcome.
    """
    rows = []
    for row in side_by_side(jot, full).itertuples():
        ours, theirs = np.asarray(row.generated_a), np.asarray(row.generated_b)
        if not (differs := np.flatnonzero(ours != theirs)).size:
            continue
        at = int(differs[0])
        outcome = OUTCOMES[int(row.score_a > 0.5), int(row.score_b > 0.5)]
        token, other = (ids.get(int(t), str(t)) for t in (ours[at], theirs[at]))
        rows.append({"doc_id": row.doc_id, "position": at, "rule": int(row.trace_rule_a[at]),
                     "step": int(row.trace_step_a[at]), "margin": float(row.trace_margin_a[at]),
                     "threshold": float(row.trace_threshold_a[at]), "token": token, "other": other,
                     "kind": kind(token), "outcome": outcome})  # fmt: skip
    columns = ["doc_id", "position", "rule", "step", "margin", "threshold", "token", "other", "kind", "outcome"]
    return pd.DataFrame(rows, columns=columns)


def by_rule(runs: Runs, ids: Mapping[int, str]) -> pd.DataFrame:
    """First differences by the rule that committed them, beside that rule's share of all answer tokens."""
    rows = []
    for tau in [t for t in runs.jot if t in runs.traced and "full" in runs.traced]:
        cell = runs.traced[tau]
        found = first_differences(cell, runs.traced["full"], ids)
        frame = cell.recorded.frame
        used = np.concatenate([r[:k] for r, k in zip(frame["trace_rule"], frame["tokens_non_eos"], strict=True)])
        for rule, name in RULES.items():
            here = found[found["rule"] == rule]
            counts = here["outcome"].value_counts()
            rows.append({"model": runs.model, "task": runs.task, "tau": tau, "n": cell.n, "rule": name,
                         "count": len(here), "different": len(found),
                         **share(len(here), len(found), "share"),
                         "all": 100 * float((used == rule).mean()) if used.size else math.nan,
                         **{k: int(counts.get(k, 0)) for k in ("break", "repair", "both right", "both wrong")},
                         "numbers": int((here["kind"] == "number").sum()),
                         "operators": int((here["kind"] == "operator").sum()),
                         "margin": here["margin"].median(), "threshold": here["threshold"].median()})  # fmt: skip
    return pd.DataFrame(rows)


def token_texts(model: str) -> dict[int, str]:
    """Text of every token of a packaged or local model's tokenizer; empty where there is none."""
    path = next(
        (f for f in (home() / "data" / "models" / model, Path(model)) if (f / "tokenizer.json").is_file()), None
    )
    if path is None:
        return {}
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    return {i: tokenizer.decode([i], skip_special_tokens=False) for i in range(tokenizer.get_vocab_size())}


def examples(runs: Runs, ids: Mapping[int, str]) -> pd.DataFrame:
    """Per failure mode the first break of the fixed order, with both texts and the token at which they part.

    A rule fixed in advance, so that nobody picks: traced documents that full decoding gets right and JoT at the
    first recorded threshold gets wrong.
    """
    rows = []
    for tau in [t for t in runs.jot if t in runs.traced and "full" in runs.traced][:1]:
        cell, full = runs.traced[tau], runs.traced["full"]
        parts = first_differences(cell, full, ids).set_index("doc_id")
        both = side_by_side(cell, full).set_index("doc_id")
        found = failure_modes.find(cell.recorded.frame, runs.docs)
        breaks = [i for i in order(runs.task, cell.config["split"], both.index)
                  if i in parts.index and parts.loc[i, "outcome"] == "break"]  # fmt: skip
        for name in failure_modes.MODES:
            if (doc_id := next((i for i in breaks if found[i] == name), None)) is not None:
                at = parts.loc[doc_id, ["token", "other", "rule", "margin", "threshold", "step"]]
                rows.append({"model": runs.model, "task": runs.task, "n": cell.n, "tau": tau, "mode": name,
                             "doc_id": doc_id, "question": runs.docs[doc_id]["question"],
                             "full": both.loc[doc_id, "text_b"].strip(), "jot": both.loc[doc_id, "text_a"].strip(),
                             **at})  # fmt: skip
    return pd.DataFrame(rows)
