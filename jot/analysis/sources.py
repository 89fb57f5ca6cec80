"""Where a notebook's rows come from: the recorded runs, or cells decoded live into a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pandas as pd

from jot.analysis.cells import (
    ALL,
    DEFAULT_TAU,
    METHODS,
    MODELS,
    NOISE_SEEDS,
    STANDARD_JOT,
    TAUS,
    TRAINING_SEEDS,
    Records,
    baseline,
    family,
    short,
    split_of,
    trained,
)
from jot.errors import UserError
from jot.paper.show import Note
from jot.records import Recorded, load_store, take
from jot.runs.grid import Point
from jot.runs.parameters import NotebookError, closest, home
from jot.tasks import TASKS, read_jsonl, split_file

SECONDS_PER_FORWARD = 0.05  # an 8B model, batch 1, one H100; for the estimate that a live run prints first
DOCUMENTS = {"gsm8k": 1319, "mmlu": 14_042, "hellaswag": 10_042, "humaneval": 164}


class Wanted(NamedTuple):
    """A cell that a notebook needs: what ``evaluate`` is asked for."""

    model: str
    task: str
    method: str  # "full" or "jot"
    tau: float | None = None
    split: str = "test"  # or "dev": the task's own name for it is looked up

    @property
    def params(self) -> dict:
        return {} if self.method == "full" else {**STANDARD_JOT, "tau_max": self.tau}


def recorded(folder: str | Path | None = None) -> Records:
    """The record set in a folder (``data/records`` by default), or one sentence on what is missing."""
    place = Path(folder) if folder else home() / "data" / "records"
    try:
        found = load_store(place) if place.is_dir() else {}
    except UserError as error:
        raise NotebookError(str(error)) from None
    if not found:
        raise NotebookError(
            f"there are no records in {folder or 'data/records'}: check that folder out, "
            "or pass source=live to decode on this machine"
        )
    return found


def main_cells(
    models: Iterable[str], tasks: Iterable[str], methods: Iterable[str], seed: int = 0
) -> Iterator[Wanted | Point]:
    """The cells behind the main table; calibration needs the whole threshold grid on dev and on test.

    Raises:
        NotebookError: an unknown method.
    """
    methods, tasks = list(methods), list(tasks)
    if unknown := [method for method in methods if method not in ALL]:
        raise NotebookError(f"parameter methods: unknown value {unknown[0]!r}{closest(unknown[0], ALL)}")
    for model in models:
        default = DEFAULT_TAU[family({"model": model})]
        for task in tasks:
            wanted = [Wanted(model, task, "full")]
            if "jot" in methods:
                wanted.append(Wanted(model, task, "jot", default))
            if "calibrated" in methods and split_of(task, "dev"):
                wanted.append(Wanted(model, task, "full", split="dev"))
                wanted += [Wanted(model, task, "jot", tau, split) for split in ("dev", "test") for tau in TAUS]
            yield from dict.fromkeys(wanted)
            others = (baseline(model, task, method, seed=seed) for method in methods if method not in METHODS)
            yield from filter(None, others)


def beside_cells(models: Iterable[str], tasks: Iterable[str]) -> Iterator[Point]:
    """Cells shown beside the main table where they are recorded: seeds of draws and of training."""
    models, tasks = list(models), list(tasks)
    for model in (m for m in models if m in MODELS):
        for task in tasks:
            for method in ("full", "jot"):
                yield from (Point.of(model, task, method, seed=seed) for seed in NOISE_SEEDS)
                yield from (Point.of(trained(model, seed), task, method) for seed in TRAINING_SEEDS)


def gpu_hours(wanted: Iterable[Wanted | Point], limit: int | None) -> float:
    """H100 hours of the full-size cells at full decoding's steps, an upper bound; packaged models count 0."""
    forwards = 0
    for cell in wanted:
        if not cell.model.startswith("pocket-"):
            documents = DOCUMENTS.get(cell.task, 1000)
            forwards += min(limit or documents, documents) * TASKS[cell.task].length
    return forwards * SECONDS_PER_FORWARD / 3600


def order(task: str, split: str, ids: Iterable[str]) -> list[str]:
    """Recorded document ids in the fixed order whose first n a ``limit`` takes."""
    ids, spec = list(ids), TASKS.get(task)
    if spec is None or spec.subject is None or not spec.packaged:
        return take(ids)
    documents = read_jsonl(split_file(spec, split, None)[1])
    kept, known = set(ids), [doc["id"] for doc in documents]
    return [doc_id for doc_id in take(known, None, [doc[spec.subject] for doc in documents]) if doc_id in kept]


def first(found: Records, limit: int | None) -> Records:
    """Every cell cut to the first ``limit`` documents of its task's fixed order."""
    if limit is None:
        return found
    orders: dict[tuple[str, str], list[str]] = {}

    def cut(recorded: Recorded) -> pd.DataFrame:
        key = recorded.meta["config"]["task"], recorded.meta["config"]["split"]
        ids = orders.setdefault(key, order(*key, recorded.frame["doc_id"]))
        return recorded.frame[recorded.frame["doc_id"].isin(ids[:limit])].reset_index(drop=True)

    most: dict[str, int] = {}
    for recorded in found.values():
        task = recorded.meta["config"]["task"]
        most[task] = max(most.get(task, 0), recorded.n)
    if short := [task for task, n in most.items() if limit > n]:
        raise NotebookError(
            f"limit={limit} is above the {most[short[0]]} recorded documents of {short[0]}; use at most "
            f"{most[short[0]]}"
        )
    kept = {}
    for name, recorded in found.items():
        meta = recorded.meta | {"totals": {**recorded.meta["totals"], "samples": min(limit, recorded.n)}}
        kept[name] = Recorded(meta, partial(cut, recorded))
    return kept


def _announce(text: str) -> None:
    from IPython.display import display

    display(Note(text))


def load(p: SimpleNamespace, wanted: Iterable[Wanted | Point], beside: Iterable[Wanted | Point] = ()) -> Records:
    """The rows that a notebook with the parameters ``p`` shows.

    ``source="recorded"`` reads the records and decodes nothing; ``source="live"`` decodes what the store
    lacks, resumably, and for full-size models it first prints an estimate of the GPU hours. Cells of
    ``beside`` are kept where they are recorded, but need not be, and are never decoded.
    """
    wanted = [cell for cell in wanted if family({"model": cell.model}) in p.families]
    if not wanted:
        raise NotebookError(f"no model of {', '.join(p.models)} is of the families {', '.join(p.families)}")
    place = p.store
    if p.source == "live":
        place = place or home() / "results" / "store"
        if hours := gpu_hours(wanted, p.limit):
            _announce(f"About {hours:.1f} GPU hours on one H100 at most; the run can be stopped and resumed.")
        for cell in wanted:
            decode(cell, place, limit=p.limit, seed=p.seed, device=p.device, dtype=p.dtype, data=p.data)
    found = {k: r for k, r in recorded(place).items() if r.meta["config"]["dtype"] == p.dtype}
    for key in ("model", "task"):
        known = sorted({recorded.meta["config"][key] for recorded in found.values()})
        for name in dict.fromkeys(short(getattr(cell, key)) for cell in wanted):
            if name not in known:
                there = ", ".join(known) or "none"
                raise NotebookError(f"no recorded cells of {key} {name!r} in {p.dtype}; recorded are {there}")
    chosen = {(short(cell.model), cell.task) for cell in (*wanted, *beside)}
    found = {k: r for k, r in found.items() if (r.meta["config"]["model"], r.meta["config"]["task"]) in chosen}
    return first(found, p.limit)


def decode(cell: Wanted | Point, store: str | Path, **how) -> None:
    """Decode what ``store`` lacks of a cell, through the resumable ``jot.runs.harness.evaluate``.

    Scoring a full-size model on HumanEval runs its code, in a sandbox; ``HF_ALLOW_CODE_EVAL=1`` consents.
    """
    from jot.runs.harness import evaluate

    how |= {"split": split_of(cell.task, cell.split), "store": store, **cell.params}
    if isinstance(cell, Point):
        how |= {"seed": cell.seed, "trace": cell.trace, "split": cell.own_split}
    consent = os.environ.get("HF_ALLOW_CODE_EVAL") == "1"
    try:
        evaluate(cell.model, cell.task, cell.method, allow_code_execution=consent, **how)
    except UserError as error:
        hint = "; in a notebook, set HF_ALLOW_CODE_EVAL=1" if "--allow-code-execution" in str(error) else ""
        raise NotebookError(f"{error}{hint}") from None
