"""What other seeds give: of the draws (the noise floor of the sampling model) and of training."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pandas as pd

from jot import stats
from jot.analysis import draws, render, sources, spelling, tables
from jot.analysis.cells import (
    MODELS,
    NOISE_SEEDS,
    TASKS,
    TRAINING_SEEDS,
    Cell,
    Records,
    family,
    lookup,
    standard_decoding,
    trained,
)
from jot.paper.show import Table
from jot.records import pair
from jot.runs.grid import Point
from jot.runs.parameters import home

SAMPLING = "pocket-dream"  # draws at temperature 0.1; the other model is greedy and has no such noise


def agreement(one: Cell, two: Cell) -> dict:
    """How two runs over the same documents agree, shares in percent with Wilson's intervals.

    ``outcomes``: both right or both wrong. ``answers``: the extracted answers are equal as text; two answers that
    could not be extracted count as equal.
    """
    both = pair(one.recorded, two.recorded)
    n = len(both)
    same = {
        "outcomes": (both["score_a"] > 0.5) == (both["score_b"] > 0.5),
        "answers": both["answer_a"].fillna("").astype(str) == both["answer_b"].fillna("").astype(str),
    }
    row = {}
    for name, equal in same.items():
        low, high = stats.wilson(int(equal.sum()), n)
        row |= {name: 100 * float(equal.mean()), f"{name}_low": 100 * low, f"{name}_high": 100 * high}
    return row


def traces() -> Records:
    """The traced runs beside the packaged records; empty where there are none."""
    folder = home() / "data" / "records" / "traces"
    return sources.recorded(folder) if folder.is_dir() else {}


def noise(
    records: Records, model: str = SAMPLING, tasks: Iterable[str] = TASKS, traced: Records | None = None
) -> pd.DataFrame:
    """Full decoding against itself under other seeds, beside JoT against full decoding under each seed.

    ``b``: repairs, only the second run of a row is right; ``c``: breaks. ``degenerate``: no draw of full decoding had
    a choice, by the margins of its traced run; ``gap``, ``smallest`` and ``traced`` are the numbers behind that.

    Args:
        traced: traced runs, by default those beside the packaged records.
    """
    seeds = (0, *NOISE_SEEDS)
    rows = []
    traced = traces() if traced is None else traced
    for task in tasks:
        margins = lookup(traced, Point.of(model, task, "full"))
        edge = draws.edge(margins)
        numbers = {} if edge is None else dict(zip(("gap", "smallest", "traced"), edge, strict=True))
        full, jot = (
            {seed: lookup(records, Point.of(model, task, method, seed=seed)) for seed in seeds}
            for method in ("full", "jot")
        )
        runs = [("full", f"seed {s} to {t}", full[s], full[t]) for s, t in itertools.combinations(seeds, 2)]
        runs += [("jot", f"seed {s}", full[s], jot[s]) for s in seeds]
        rows += [
            {"model": model, "task": task, "method": method, "seeds": named, **agreement(two, one),
             **tables.compare(two, one), **numbers,
             "degenerate": method == "full" and draws.degenerate([one, two], margins)}
            for method, named, one, two in runs if one and two
        ]  # fmt: skip
    return pd.DataFrame(rows)


def noise_table(frame: pd.DataFrame) -> Table:
    """The frame of ``noise`` as a table."""
    if frame.empty:
        return Table(pd.DataFrame(), "Noise floor: not recorded.")
    named = {"full": "Full decoding against itself", "jot": "JoT (default) against full decoding"}
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "Compared": f"{named[r['method']]}, {r['seeds']}".replace("seed ", "seed\u00a0"),
            "n": f"{r['n']:,}",
            "Outcomes agree, %": _share(r, "outcomes"),
            "Answers agree, %": _share(r, "answers"),
            "Repairs b": r["b"],
            "Breaks c": r["c"],
            "Difference, points": draws.DEGENERATE if r["degenerate"] else render._points(r),
        }
        for _, r in frame.iterrows()
    ]
    caption = (
        f"Noise floor of the draws. {render.scope(frame)}. Outcomes: both right or both wrong; answers: equal as "
        "extracted (for code: the program's text). Repairs: only the second run right; under full decoding alone "
        f"they are noise, and JoT's stand beside them. {nucleus_note()} {_no_choice(frame)}"
        f"Shares: {render.WILSON}; difference: {render.TANGO}. Exploratory."
    )
    return Table(pd.DataFrame(rows), caption)


def nucleus_note(model: str = SAMPLING, task: str = TASKS[0]) -> str:
    """Where draws can differ at all, from the model's own temperature and nucleus."""
    decode = standard_decoding(family({"model": model}), task)
    gap = draws.gap(decode)
    return (
        f"At temperature {decode['temperature']:g} a nucleus of {decode['top_p']:g} holds one of two candidates "
        f"wherever their logits are more than {gap:.2f} apart; draws can differ only where the schedule reveals a "
        "position closer than that."
    )


def _no_choice(frame: pd.DataFrame) -> str:
    """What the degenerate rows rest on, for the caption; empty where there are none."""
    found = frame[frame["degenerate"]].drop_duplicates("task")
    if found.empty:
        return ""
    told = "; ".join(
        f"{r['task']}: smallest margin {r['smallest']:.4f} against {r['gap']:.4f} in {r['traced']:.0f} traced documents"
        for _, r in found.iterrows()
    )
    return (
        f"Degenerate: every token is the same under each seed, and every traced commit is further apart ({told}), so "
        "that the agreement is no evidence of stability. "
    )


def _share(row: pd.Series, name: str) -> str:
    return f"{row[name]:g}\n{draws.DEGENERATE}" if row["degenerate"] else spelling.of(row, name)


def training(records: Records, models: Iterable[str] = MODELS, tasks: Iterable[str] = TASKS) -> pd.DataFrame:
    """Full decoding and JoT's default for every training seed: scores, speedup and paired difference.

    A row for every model, seed and task; what is not recorded is left empty in it.
    """
    rows = []
    for model, task, seed in itertools.product((m for m in models if m in MODELS), tasks, (0, *TRAINING_SEEDS)):
        full, jot = (lookup(records, Point.of(trained(model, seed), task, method)) for method in ("full", "jot"))
        cell = jot or full
        row = {"model": model, "task": task, "seed": seed, "n": cell.n if cell else None}
        for name, found in (("full", full), ("jot", jot)):
            if found:
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), tables.score(found), strict=True))
        if jot:
            row["tau"] = jot.tau
            row |= dict(zip(("speedup", "speedup_low", "speedup_high"), tables.speedup(jot), strict=True))
        if full and jot:
            row |= tables.compare(jot, full)
        rows.append(row)
    return pd.DataFrame(rows)


def training_table(frame: pd.DataFrame) -> Table:
    """The frame of ``training`` as a table, the shipped seed first."""
    rows = [
        {
            "Model": r["model"],
            "Task": r["task"],
            "Training seed": f"{r['seed']}" + (" (shipped)" if r["seed"] == 0 else ""),
            "Full decoding, %": spelling.of(r, "full", empty="not recorded"),
            "JoT (default), %": spelling.of(r, "jot", empty="not recorded"),
            "JoT's speedup, ×": spelling.of(r, "speedup", 2, empty="not recorded"),
            "Repairs b": "" if pd.isna(r.get("b")) else f"{r['b']:.0f}",
            "Breaks c": "" if pd.isna(r.get("c")) else f"{r['c']:.0f}",
            "Difference, points": render._points(r) or "not recorded",
            "Verdict": "" if pd.isna(r.get("verdict")) else r["verdict"],
        }
        for _, r in frame.iterrows()
    ]
    recorded = frame[frame["n"].notna()].astype({"n": int})
    caption = (
        f"All training seeds, test split, JoT at its default. {render.scope(recorded)}. Seed 0 is shipped and stands "
        "in every other table; no seed is left out. "
        f"Scores: {render.WILSON}; speedup: {render.BOOT}; difference: JoT minus full decoding of the same seed, "
        f"{render.TANGO}. Exploratory."
    )
    return Table(pd.DataFrame(rows), caption)
