"""What traced runs and followed texts show, as far as several notebooks need it: texts of tokens, margins by step, how
these run over time; exits on true text."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import parquet

from jot import stats
from jot.models import home
from jot.records import TRACE, load, natural
from jot.runs.parameters import NotebookError


def token_texts(model: str) -> dict[int, str]:
    """Text of every token of a packaged or local model's tokenizer; empty where there is none."""
    places = (home() / "data" / "models" / Path(model).name, Path(model))
    file = next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").is_file()), None)
    return load.token_texts(file, file.stat().st_mtime_ns, special=True) if file else {}


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Samples in the documents' own order (9 before 10); tokens and traces as arrays (lists in live records)."""
    rows = rows.sort_values("doc_id", key=lambda ids: ids.map(natural), kind="stable")
    kinds = {"generated": int} | {f"trace_{name}": int for name in TRACE}
    kinds |= {f"trace_{name}": float for name in ("margin", "threshold", "mean_margin")}  # None is nan there
    lists = {name: kind for name, kind in kinds.items() if name in rows}
    return rows.assign(**{name: [np.asarray(x, kind) for x in rows[name]] for name, kind in lists.items()})


def by_step(values: Iterable[Sequence[float]]) -> pd.DataFrame:
    """One row a document, one column a step, from a trace's lists; nan once a document's canvas is full."""
    rows = [np.asarray(row, dtype=float) for row in values]
    out = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for row, found in zip(out, rows, strict=True):
        row[: len(found)] = found
    return pd.DataFrame(out)


def rho(curves: pd.DataFrame) -> pd.Series:
    """Spearman's rho of value and step for each row of ``by_step`` that has three steps and is not constant."""
    kept = curves[(curves.notna().sum(axis=1) > 2) & (curves.max(axis=1) > curves.min(axis=1))]
    return kept.T.corrwith(pd.Series(curves.columns, curves.columns, dtype=float), method="spearman")


def mean(values: pd.Series) -> stats.Estimate:
    """Mean over documents with a percentile bootstrap interval over them; nan where there is none."""
    if not len(values):
        return stats.Estimate(math.nan, math.nan, math.nan)
    return stats.paired_difference_bootstrap(values, np.zeros(len(values)))


def followed(
    path: str | Path, models: Sequence[str], tasks: Sequence[str], limit: int | None = None
) -> list[tuple[pd.DataFrame, dict]]:
    """What a file of ``pocket.true_text`` holds of these models and tasks, in their order, or nothing where it is not.

    Returns:
        Rows of the first ``limit`` documents, and what was measured, with ``documents`` and ``positions`` of these.

    Raises:
        NotebookError: the file cannot be read.
    """
    if not Path(path).is_file():
        return []
    try:
        table = parquet.read_table(path)
        metas = json.loads(table.schema.metadata[b"flip_bound"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        text = f"{Path(path).name} cannot be read ({error}); make it again or check it out again"
        raise NotebookError(text) from None
    whole, kept = table.to_pandas(), []
    for wanted, (i, meta) in itertools.product(itertools.product(models, tasks), enumerate(metas)):
        if wanted == (meta["model"], meta["task"]):
            n = min(limit or meta["documents"], meta["documents"])
            rows = whole[(whole["part"] == i) & (whole["document"] < n)].drop(columns="part").reset_index(drop=True)
            kept.append((rows, meta | {"documents": n, "positions": sum(meta["held"][:n])}))
    return kept
