"""JoT inside Fast-dLLM's dual cache: the paper's composability table on the recorded runs, and its claims.

Rows are keyed (model, task, row); ``rows`` says what each of them decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from jot import stats
from jot.analysis import tables
from jot.analysis.cells import DEFAULT_TAU, PLANNED, TAUS, Cell, Records, family, lookup
from jot.analysis.phenomena import DREAM, LLADA, MARGIN, difference, every, spell
from jot.errors import UserError
from jot.paper.criteria import NOT_SHOWN, Judged, judged
from jot.records import take
from jot.runs.grid import Point

TASKS = ("pocket_gsm8k", "pocket_humaneval")
RETUNED = {"dream": 30, "llada": 60}  # the paper's choice, from a sweep on its HumanEval test set
BLOCK = 32
BLOCKS = {
    "dream": {"block_length": BLOCK, "temperature": 0.0, "ranking": "confidence"},
    "llada": {"block_length": BLOCK},
}


class Row(NamedTuple):
    """One configuration: its label and what it decodes."""

    label: str
    point: Point


def rows(model: str, task: str, seed: int = 0) -> dict[str, Row]:
    """Every configuration of a model and task, by key, in the order of the table."""
    kind = family({"model": model})
    default, blocks, dream = DEFAULT_TAU[kind], BLOCKS[kind], kind == "dream"
    dual = {**blocks, "cache": "dual"}

    def row(label: str, method: str, **settings: object) -> Row:
        return Row(label, Point.of(model, task, method, seed=seed, **settings))

    found = {"full": row("Full decoding", "full")}
    if dream:  # the cached decoder is greedy and goes block by block; Dream's own way is neither
        found["full-blocks"] = row("Full decoding, greedy in blocks", "full", cache=None, **blocks)
    found["full-dual"] = row("Full decoding, dual cache", "full", **dual)
    found["fastdllm"] = row("Fast-dLLM, dual cache", "fastdllm")
    found["jot-alone"] = row(f"JoT alone, τ = {default}", "jot")
    for tau in (RETUNED[kind], default) if dream else ():
        label = f"JoT, greedy in blocks, τ = {tau}"
        found[f"jot-blocks-{tau}"] = row(label, "jot", cache=None, tau_max=tau, **blocks)
    for tau in TAUS:
        found[f"dual-{tau}"] = row(f"JoT, dual cache, τ = {tau}", "jot", tau_max=tau, **dual)
    if dream:
        label = f"JoT, dual cache, exits when a block opens, τ = {RETUNED[kind]}"
        found["block-start"] = row(label, "jot", tau_max=RETUNED[kind], block_start=True, **dual)
    else:
        found["prefix"] = row(f"JoT, prefix cache, τ = {default}", "jot", cache="prefix", **blocks)
    return found


def wanted(models: Iterable[str], tasks: Iterable[str] = TASKS, seed: int = 0) -> list[Point]:
    """What the notebook decodes live."""
    tasks = list(tasks)
    return [row.point for model in models for task in tasks for row in rows(model, task, seed).values()]


def select(
    records: Records, models: Iterable[str], tasks: Iterable[str] = TASKS, seed: int = 0
) -> dict[tuple[str, str, str], Cell]:
    """The recorded cells, keyed (model, task, row); what is not recorded is left out.

    Raises:
        UserError: none is recorded.
    """
    tasks = list(tasks)
    found = {
        (model, task, key): cell
        for model in models
        for task in tasks
        for key, row in rows(model, task, seed).items()
        if (cell := lookup(records, row.point))
    }
    if not found:
        raise UserError(f"none of the composability cells is among the records (seed {seed}); choose other parameters")
    return found


# --- numbers ------------------------------------------------------------------------------------------------


def tokens(cell: Cell) -> np.ndarray | None:
    """Positions that the network is run on, per document; None under the prefix cache.

    A forward over the canvas runs it on prompt and canvas, one inside a block on the block. How long the suffix
    of a prefix-cached forward is depends on its block, which a record does not say.
    """
    if cell.column("forwards_suffix").any():
        return None
    width = cell.column("prompt_tokens") + cell.config["decode"]["length"]
    block = cell.config["decode"].get("block_length") or 0
    return cell.column("forwards_full") * width + cell.column("forwards_block") * block


def token_speedup(cell: Cell) -> stats.Estimate | None:
    """Positions that full decoding without a cache would run, over those run; None under the prefix cache."""
    run = tokens(cell)
    if run is None:
        return None
    width = cell.column("prompt_tokens") + cell.config["decode"]["length"]
    return stats.ratio_bootstrap(cell.column("configured_steps") * width, run)


def frame(found: Mapping[tuple[str, str, str], Cell], seed: int = 0) -> pd.DataFrame:
    """One row per configuration: score, speedup, forwards by kind, positions, differences to the references.

    ``full_*`` is the paired difference to full decoding of the main table, ``fastdllm_*`` to Fast-dLLM under the
    same cache; both in points with Tango's interval and the discordant counts.
    """
    out = []
    for (model, task, key), cell in found.items():
        row = {
            "model": model, "family": family({"model": model}), "task": task, "row": key,
            "label": rows(model, task, seed)[key].label, "tau": cell.tau,
            "cache": cell.config["decode"].get("cache") or "none", "n": cell.n,
            "steps": float(cell.column("steps").mean()), **tables.forwards(cell),
        }  # fmt: skip
        run = tokens(cell)
        row["tokens"] = None if run is None else float(run.mean())
        for name, estimate in (
            ("score", tables.score(cell)), ("speedup", tables.speedup(cell)), ("token_speedup", token_speedup(cell))
        ):  # fmt: skip
            if estimate:
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), estimate, strict=True))
        for name in ("full", "fastdllm"):
            reference = found.get((model, task, name))
            if reference and key != name:
                result = tables.compare(cell, reference)
                row |= {f"{name}_{k}": result[k] for k in ("difference", "low", "high", "b", "c")}
        out.append(row)
    return pd.DataFrame(out)


def retuning(found: Mapping[tuple[str, str, str], Cell]) -> pd.DataFrame:
    """What choosing the threshold under the cache on the reported documents adds to its score.

    ``best``: the threshold of the highest score over all documents, ties to the lower threshold. ``honest``: the
    same choice made on one half of the documents and scored on the other, both ways, pooled; the halves are the
    first and second of the fixed order.
    """
    out = []
    for model, task in dict.fromkeys((m, t) for m, t, _ in found):
        cells = {tau: found[model, task, f"dual-{tau}"] for tau in TAUS if (model, task, f"dual-{tau}") in found}
        if len(cells) < len(TAUS):
            continue
        scores = {tau: cell.recorded.frame.set_index("doc_id")["score"] for tau, cell in cells.items()}
        order = take(sorted(scores[TAUS[0]].index))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        best = max(TAUS, key=lambda tau: scores[tau].sum())
        right, chosen = 0.0, []
        for here, there in (halves, halves[::-1]):
            if here and there:
                chosen.append(max(TAUS, key=lambda tau: scores[tau].loc[here].sum()))
                right += float(scores[chosen[-1]].loc[there].sum())
        retuned = RETUNED[family({"model": model})]
        out.append(
            {
                "model": model, "task": task, "n": len(order), "best": best,
                "claimed": 100 * float(scores[best].mean()), "chosen": chosen,
                "honest": 100 * right / len(order) if len(chosen) == 2 else None, "retuned": retuned,
                "at_retuned": 100 * float(scores[retuned].mean()),
            }
        )  # fmt: skip
    return pd.DataFrame(out)


def published_rows(table: pd.DataFrame, main: pd.DataFrame) -> pd.DataFrame:
    """The paper's composability table, with full decoding and JoT alone of its main table, in our keys.

    Args:
        table: ``published.load("composability")``.
        main: ``published.load("main_results")``.
    """
    alone = main[main["method"].isin(["full", "jot"]) & ("pocket_" + main["task"]).isin(TASKS)]
    keyed = []
    for source, cached in ((alone, False), (table, True)):
        for _, r in source.iterrows():
            key = {"full": "full", "fastdllm": "fastdllm"}.get(r["method"])
            key = key or (f"dual-{r['tau_max']:g}" if cached else "jot-alone")
            keyed.append({"model": r["model"], "family": family({"model": r["model"]}), "task": "pocket_" + r["task"],
                          "row": key, "metric": r["metric"], "value": r["value"]})  # fmt: skip
    wide = pd.DataFrame(keyed).pivot_table(
        index=["model", "family", "task", "row"], columns="metric", values="value", sort=False
    )
    return wide.reset_index()


def checks(found: Mapping[tuple[str, str, str], Cell], frame: pd.DataFrame) -> pd.DataFrame:
    """What the tables rest on: statement, holds, detail."""
    kinds = ("forwards_full", "forwards_suffix", "forwards_block")
    summed = [(sum(c.column(k) for k in kinds) == c.column("steps")).all() for c in found.values()]
    full = [c for (_, _, key), c in found.items() if key.startswith("full")]
    dual = [c for c in found.values() if c.config["decode"].get("cache") == "dual"]
    blocks = [c.config["decode"]["length"] // c.config["decode"]["block_length"] for c in dual]
    opened = [(c.column("forwards_full") == n).all() for c, n in zip(dual, blocks, strict=True)]
    bare = [c for c in found.values() if not c.config["decode"].get("cache")]
    inside = all(
        ((frame[k] >= frame[f"{k}_low"]) & (frame[k] <= frame[f"{k}_high"])).all() for k in ("score", "speedup")
    )
    short = sorted({f"{t} ({c.n:,})" for (_, t, _), c in found.items() if c.n < PLANNED.get(t, 0)})
    rows = [
        ("Full, suffix and in-block forwards add up to the steps, document by document", all(summed),
         f"{len(summed)} cells"),
        ("Full decoding takes every configured step, under the cache too",
         all((c.column("steps") == c.column("configured_steps")).all() for c in full), f"{len(full)} cells"),
        ("Under the dual cache one forward of each block covers the canvas", all(opened), f"{len(opened)} cells"),
        ("Without a cache every forward covers the canvas",
         all((c.column("forwards_full") == c.column("steps")).all() for c in bare), f"{len(bare)} cells"),
        ("Every interval holds its estimate", inside, f"{2 * len(frame)} intervals"),
        ("Every cell has the planned number of documents", not short, ", ".join(short)),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["statement", "holds", "detail"])


# --- criteria of the plan -----------------------------------------------------------------------------------


def _retuned(model: str, task: str) -> Point:
    return rows(model, task)[f"dual-{RETUNED[family({'model': model})]}"].point


def compose_gsm8k(records: Records) -> Judged:
    """Composition keeps gsm8k accuracy: the retuned threshold under the cache against full decoding."""
    task = TASKS[0]
    parts = {m: difference(records, _retuned(m, task), rows(m, task)["full"].point) for m in (DREAM, LLADA)}
    return every(parts, lambda x: x.low > -MARGIN, lambda x: x.high < -MARGIN)


def compose_humaneval(records: Records) -> Judged:
    """Under the cache Fast-dLLM's gate is more robust on humaneval than JoT's."""
    task = TASKS[1]
    parts = {m: difference(records, rows(m, task)["fastdllm"].point, _retuned(m, task)) for m in (DREAM, LLADA)}
    return every(parts, lambda x: x.low > 0, lambda x: x.high < 0)


def compose_horizon(records: Records) -> Judged:
    """Block-wise caching caps the speedup (Dream, humaneval, default threshold)."""
    named = rows(DREAM, TASKS[1])
    keys = {"alone": "jot-alone", "in the cache": f"dual-{DEFAULT_TAU['dream']}"}
    found = {name: lookup(records, named[key].point) for name, key in keys.items()}
    speed = {name: tables.speedup(cell) if cell else None for name, cell in found.items()}
    alone, cached = speed.values()
    detail = "; ".join(f"{name} {spell(value, '×')}" for name, value in speed.items())
    if not (alone and cached):
        return NOT_SHOWN, detail
    return judged(True, alone.low > cached.high, alone.high < cached.low, detail)


PHENOMENA = {
    "compose-gsm8k": compose_gsm8k,
    "compose-humaneval": compose_humaneval,
    "compose-horizon": compose_horizon,
}
