"""What notebook 12 needs of the traces of the real benchmarks, made once, so that no trace of them is shipped.

``PYTHONPATH=data python -m smol.benchmarks LIVE`` reads the traced runs of a live store and writes
``benchmarks.parquet`` beside the packed ones (``--store DIR``, by default ``data/records/smol``), a row a decoded
document: ``cell`` (ten digits), ``doc_id``, ``end`` (tokens of its text, up to and with the first end of text; all
where there is none), ``final`` (steps until these were final) and ``beside`` (those of them that a step committed
together with another of them). No prompt and no reference is kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from jot.errors import UserError
from jot.models import smol as pinned
from jot.runs.frames import runs, samples
from jot.runs.parameters import NotebookError
from smol.quality import place

TASKS = ("gsm8k", "humaneval", "mmlu", "hellaswag")
ENDS = (0, 2)  # tokens of SmolLM2 that end a text and a turn
FILE = "benchmarks.parquet"


def own_text(generated: Sequence[int]) -> int:
    """Tokens up to and with the first end of text; all where there is none."""
    at = np.flatnonzero(np.isin(generated, ENDS))
    return int(at[0]) + 1 if len(at) else len(generated)


def measured(generated: Sequence[int], step: Sequence[int]) -> tuple[int, int, int]:
    """``end``, ``final`` and ``beside`` of one document; ``step``: of each position, the step that committed it."""
    end = own_text(generated)
    step = np.asarray(step)[:end]
    return end, int(step.max()) + 1, int((np.bincount(step)[step] > 1).sum())


def record(live: str | Path, store: str | Path | None = None) -> Path:
    """Write the table for the benchmarks' runs that the packed store has; returns its file.

    Raises:
        UserError: a run is not traced in ``live``, or other documents or tokens were decoded there.
    """
    at, parts = place(store), []
    known = runs(at, model=pinned.NAME)
    for (task, split), packed in known[known["task"].isin(TASKS)].groupby(["task", "split"], sort=False):
        traced = runs(live, model=pinned.NAME, task=task, split=split)
        traced = traced[traced["cell"].isin(packed["cell"])]
        rows = samples(traced, live, ["generated", "trace_step"], paired=False).dropna(subset="trace_step")
        keys = ["cell", "doc_id"]
        both = samples(packed, at, ["generated"], paired=False)[[*keys, "generated"]].merge(
            rows[[*keys, "generated", "trace_step"]], "left", keys, suffixes=("", "_live")
        )
        if both["trace_step"].isna().any():
            raise UserError(f"{live} lacks traces of {both.loc[both['trace_step'].isna(), 'cell'].iloc[0]}")
        if any([*x] != [*y] for x, y in zip(both["generated"], both["generated_live"], strict=True)):
            raise UserError(f"{live} holds other tokens of {task} than {at}")
        found = [measured(*row) for row in both[["generated", "trace_step"]].itertuples(index=False)]
        found = pd.DataFrame(found, columns=["end", "final", "beside"], dtype="uint16")
        parts.append(pd.concat([both["cell"].str[-10:], both["doc_id"], found], axis=1))
    table = pa.Table.from_pandas(pd.concat(parts, ignore_index=True), preserve_index=False)
    parquet.write_table(table.replace_schema_metadata(None), at / FILE, compression="brotli", compression_level=11)
    return at / FILE


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m smol.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("live", help="the live store with the traces")
    parser.add_argument("--store", help="packed records of smol-dream (default: data/records/smol)")
    o = parser.parse_args(words)
    try:
        print(record(o.live, o.store))
    except (UserError, NotebookError, OSError) as error:
        raise SystemExit(f"jot: error: {error}") from error


if __name__ == "__main__":
    main()
