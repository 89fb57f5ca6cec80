"""Where a notebook's runs come from: recorded ones, or cells decoded live on this machine into a store."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

from jot.errors import UserError
from jot.models import home
from jot.runs import grid
from jot.runs.frames import family, folder
from jot.runs.parameters import NotebookError
from jot.tasks import TASKS

SECONDS_PER_FORWARD = 0.05  # an 8B model, batch 1, one H100; for the estimate that a live run prints first
DOCUMENTS = {"gsm8k": 1319, "mmlu": 14_042, "hellaswag": 10_042, "humaneval": 164}
TOKENS = ("constraints", "answer_start", "suppress_tokens", "suppress_start_tokens")  # ids of one tokenizer


def store(p: SimpleNamespace, *grids: str | grid.Point) -> Path:
    """The folder whose runs a notebook shows, by default ``data/records``, or ``results/store`` where they are live.

    Live, what it lacks of the grids (files of ``notebooks/grids``, the only list of cells) is decoded into it; for
    full-size models an estimate of the GPU hours is printed first. Of a grid are taken the cells of the notebook's
    models, tasks and methods; its embedded models and tasks stand for any of their family and kind. A notebook whose
    parameters set the rule itself names its own cells in place of a grid.
    """
    if p.source == "live":
        place = Path(p.store) if p.store else home() / "results" / "store"
        points = [point for each in grids for point in (cells(each, p) if isinstance(each, str) else [each])]
        if grids and not points:
            raise NotebookError(f"the grids {', '.join(grids)} list no cell of these models, tasks and methods")
        if hours := gpu_hours(points, p.limit):
            print(f"About {hours:.1f} GPU hours on one H100 at most; the run can be stopped and resumed.")
        for point in dict.fromkeys(points):
            _decode(point, place / point.store, p)
        return place
    place = folder(p.store)
    if not place.is_dir():
        raise NotebookError(
            f"there are no records in {p.store or 'data/records'}: check that folder out, "
            "or pass source=live to decode on this machine"
        )
    return place


def cells(name: str, p: SimpleNamespace) -> Iterator[grid.Point]:
    """The cells of a grid file for a notebook's models, tasks and methods."""
    models, tasks = getattr(p, "models", None) or [p.model], p.tasks
    methods = getattr(p, "methods", None)
    for point in grid.read(home() / "notebooks" / "grids" / f"{name}.yaml"):
        packaged = point.model.startswith("pocket-") and not set(TOKENS) & set(point.params)
        for model, task in product(models, tasks) if methods is None or point.name in methods else ():
            alike = packaged and family(model) == family(point.model) and f"pocket_{task}" == point.task
            if alike or (model, task) == (point.model, point.task):
                yield replace(point, model=model, task=task, seed=point.seed + p.seed)


def gpu_hours(points: Iterable[grid.Point], limit: int | None) -> float:
    """H100 hours of the full-size cells at full decoding's steps, an upper bound; small models count 0."""
    large = [point.task for point in points if not point.model.startswith(("pocket-", "smol-"))]
    documents = [min(limit or math.inf, DOCUMENTS.get(task, 1000)) for task in large]
    return sum(n * TASKS[task].length for n, task in zip(documents, large, strict=True)) * SECONDS_PER_FORWARD / 3600


def _decode(point: grid.Point, place: Path, p: SimpleNamespace) -> None:
    """Decode what ``place`` lacks of a cell; ``HF_ALLOW_CODE_EVAL=1`` consents to running a full-size model's code."""
    from jot.runs.harness import evaluate

    limit = p.limit if point.limit is None else min(point.limit, p.limit or point.limit)
    how = {"split": point.own_split, "store": place, "limit": limit, "seed": point.seed, "trace": point.trace}
    how |= {"device": p.device, "dtype": p.dtype, "data": p.data, **point.params}
    try:
        evaluate(point.model, point.task, point.method,
                 allow_code_execution=os.environ.get("HF_ALLOW_CODE_EVAL") == "1", **how)  # fmt: skip
    except UserError as error:
        hint = "; in a notebook, set HF_ALLOW_CODE_EVAL=1" if "--allow-code-execution" in str(error) else ""
        raise NotebookError(f"{error}{hint}") from None
