"""Timings that were recorded, one row a decoding: ``timings.csv`` beside the cells of the same samples.

``tests/speed/turns.py`` records them: methods in turn on each document, every decoding repeated. Beside the clock
stands the processor time of the process, which waiting for a core does not lengthen: where the two part, the machine
was busy.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from jot.errors import UserError
from jot.models import home
from jot.records import metas
from jot.runs.frames import order
from jot.runs.parameters import NotebookError
from jot.tasks import TASKS

FILE = "timings.csv"


def about(store: str | Path) -> dict[str, dict]:
    """Configuration, hardware and versions of the cells beside the timings; none where the file stands alone."""
    try:
        return metas(store)
    except UserError:
        return {}


def read(store: str | Path) -> pd.DataFrame:
    """One row a decoding: ``model task method doc_id prompt_tokens rows repeat steps forwards_full forwards_block``,
    seconds by ``clock`` and processor, the same of a bare forward; and ``machine``, "CPU" or the name of the card.

    Raises:
        NotebookError: nothing is recorded there.
    """
    try:
        raw = pd.read_csv(Path(store) / FILE)
    except (OSError, ValueError):
        place = Path(store)
        place = place.relative_to(home()) if place.is_relative_to(home()) else place
        raise NotebookError(
            f"there are no timings in {place}: check that folder out, or pass source=live to time this machine"
        ) from None
    kinds = {meta["hardware"]["kind"] for meta in about(store).values()}
    machine = " and ".join(sorted("CPU" if kind == "cpu" else kind for kind in kinds))
    return raw.assign(machine=machine or "machine not recorded")


def first(raw: pd.DataFrame, limit: int) -> pd.DataFrame:
    """The first ``limit`` documents of each task's fixed order."""
    kept = []
    for task, group in raw.groupby("task", sort=False):
        ids = set(group["doc_id"])
        if limit > len(ids):
            n = len(ids)
            raise NotebookError(f"limit={limit} is above the {n} timed documents of {task}; use at most {n}")
        split = TASKS[task].splits[0] if task in TASKS else "test"
        kept.append(group[group["doc_id"].isin(order(task, split, ids)[:limit])])
    return pd.concat(kept, ignore_index=True)
