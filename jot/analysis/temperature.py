"""A margin threshold and a probability threshold at several temperatures: what transfers and what breaks."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping

import pandas as pd

from jot import stats
from jot.analysis import published, tables
from jot.analysis.cells import Cell, Records, family, lookup
from jot.analysis.phenomena import DREAM, LLADA, MARGIN, difference, every
from jot.errors import UserError
from jot.paper.criteria import Judged
from jot.runs.grid import Point

TASKS = ("pocket_gsm8k", "pocket_humaneval")
TEMPERATURES = (0.0, 0.1, 0.5, 1.0)
METHODS = {  # name -> label, method of the command line, settings
    "full": ("Full decoding", "full", {}),
    "jot": ("JoT (default)", "jot", {}),
    "fastdllm": ("Fast-dLLM as published", "fastdllm", {"gate": "proposal"}),
    "fastdllm-raw": ("Fast-dLLM, gate on raw probabilities", "fastdllm", {"gate": "raw"}),
}
LABELS = {name: label for name, (label, *_) in METHODS.items()}
COLLAPSE = 10.0  # points; how far the plan asks a score to fall


def point(model: str, task: str, method: str, temperature: float, seed: int = 0) -> Point:
    """What one cell of the table decodes; Dream samples from the nucleus of 0.9, as in the main table."""
    _, rule, settings = METHODS[method]
    nucleus = {"top_p": 0.9} if family({"model": model}) == "dream" else {}
    return Point.of(model, task, rule, seed=seed, temperature=temperature, **nucleus, **settings)


def wanted(models: Iterable[str], tasks: Iterable[str] = TASKS, seed: int = 0) -> list[Point]:
    """What a notebook decodes live."""
    tasks = list(tasks)
    return [
        point(model, task, method, temperature, seed)
        for model in models
        for task in tasks
        for method in METHODS
        for temperature in TEMPERATURES
    ]


Found = Mapping[tuple[str, str, str, float], Cell]


def select(records: Records, models: Iterable[str], tasks: Iterable[str] = TASKS, seed: int = 0) -> Found:
    """The recorded cells, keyed (model, task, method, temperature); what is not recorded is left out."""
    tasks = list(tasks)
    return {
        (model, task, method, temperature): cell
        for model in models
        for task in tasks
        for method in METHODS
        for temperature in TEMPERATURES
        if (cell := lookup(records, point(model, task, method, temperature, seed)))
    }


def frame(found: Found) -> pd.DataFrame:
    """One row per cell: score, speedup and paired differences in points.

    ``cold_*``: to the same method at temperature 0; ``full_*``: to full decoding at the same temperature;
    ``gate_*``: of the raw gate to the published one at the same temperature.
    """
    out = []
    for (model, task, method, temperature), cell in found.items():
        row = {"model": model, "family": family({"model": model}), "task": task, "method": method,
               "temperature": temperature, "n": cell.n}  # fmt: skip
        for name, estimate in (("score", tables.score(cell)), ("speedup", tables.speedup(cell))):
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), estimate, strict=True))
        references = {
            "cold": (model, task, method, 0.0) if temperature else None,
            "full": (model, task, "full", temperature) if method != "full" else None,
            "gate": (model, task, "fastdllm", temperature) if method == "fastdllm-raw" else None,
        }
        for name, key in references.items():
            if key in found:
                result = tables.compare(cell, found[key])
                row |= {f"{name}_{k}": result[k] for k in ("difference", "low", "high", "b", "c")}
        out.append(row)
    return pd.DataFrame(out)


def prose(prefix: str = "temperature") -> pd.DataFrame:
    """Numbers that the paper gives in its text alone, ``data/paper/prose.csv``: place, claim, value (float).

    Raises:
        UserError: the file is missing or has other columns.
    """
    path = published.folder() / "prose.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        read = [{"place": r["place"], "claim": r["claim"], "value": float(r["value"])} for r in rows]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); get it from the repository") from error
    return pd.DataFrame([r for r in read if r["claim"].startswith(prefix)], columns=["place", "claim", "value"])


# --- criteria of the plan -----------------------------------------------------------------------------------


def collapse(records: Records) -> Judged:
    """A probability threshold breaks at T = 0.1 (Dream, humaneval)."""
    found = difference(records, *(point(DREAM, TASKS[1], "fastdllm", t) for t in (0.1, 0.0)))
    return every({"T = 0.1 minus T = 0": found}, lambda x: x.high < -COLLAPSE, lambda x: x.low > -MARGIN)


def unit(records: Records) -> Judged:
    """It breaks because it reads tempered probabilities (Dream, humaneval, T = 0.1)."""
    found = difference(records, *(point(DREAM, TASKS[1], m, 0.1) for m in ("fastdllm-raw", "fastdllm")))
    return every({"raw gate minus published": found}, lambda x: x.low > 0, lambda x: x.high < 0)


def transfer(records: Records) -> Judged:
    """A margin threshold transfers across temperatures (gsm8k)."""
    parts: dict[str, stats.Estimate | None] = {
        f"{model} T = {t:g}": difference(records, *(point(model, TASKS[0], m, t) for m in ("jot", "full")))
        for model in (DREAM, LLADA)
        for t in TEMPERATURES
    }
    return every(parts, lambda x: x.low > -MARGIN, lambda x: x.high < -MARGIN)


PHENOMENA = {
    "temperature-collapse": collapse,
    "temperature-unit": unit,
    "temperature-transfer": transfer,
}
