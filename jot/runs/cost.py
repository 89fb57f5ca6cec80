"""What a grid costs: seconds of each cell from the times of the recorded runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jot import tasks
from jot.errors import UserError
from jot.models import home
from jot.records import metas, on, plain
from jot.runs.grid import Grid, Point
from jot.runs.live import DOCUMENTS

Metas = Mapping[str, Mapping]


class Estimate(NamedTuple):
    """What one point will take."""

    documents: int | None = None  # None where the split is not here to be counted
    seconds: float | None = None  # of the configured steps, at the pace of the nearest recorded cell
    nearest: str | None = None  # its id


def recorded() -> Metas:
    """Totals and hardware of the recorded cells in ``data/records``, without samples; may be empty."""
    found = metas(folder) if (folder := home() / "data" / "records").is_dir() else {}
    return {name: meta for name, meta in found.items() if meta["totals"].get("steps")}


@cache
def _lines(path: Path) -> int:
    return len(tasks.read_jsonl(path))


def documents(point: Point) -> int | None:
    """Samples that the point decodes, as far as that can be told without a download."""
    task = tasks.get(point.task)
    whole = DOCUMENTS.get(point.task) if point.own_split == task.splits[0] else None
    if task.packaged:
        try:
            whole = _lines(tasks.split_file(task, point.own_split, None)[1])
        except (UserError, OSError):
            whole = None
    return min(filter(None, (whole, point.limit)), default=None)


def estimate(point: Point, found: Metas) -> Estimate:
    """Seconds of one process on the recorded hardware, from the recorded cell of the same model and task that differs
    in the fewest settings, the method counting most."""
    n, asked = documents(point), point.resolved()

    def distance(name: str) -> tuple:
        config = found[name]["config"]
        have = on(plain({**config["decode"], **config["method"]}))
        differences = sum(have.get(key) != asked.get(key) for key in {*have, *asked})
        other = config["split"] != point.own_split, config.get("seed") != point.seed
        return have["name"] != point.method, differences, *other, name

    same = {"model": Path(point.model).name, "task": point.task}
    alike = [name for name, meta in found.items() if same.items() <= meta["config"].items()]
    if n is None or asked is None or not alike:
        return Estimate(n)
    nearest = min(alike, key=distance)
    totals = found[nearest]["totals"]
    return Estimate(n, n * asked["steps"] * totals["seconds"] / totals["configured_steps"], nearest)


def duration(seconds: float | None) -> str:
    """ "3 s", "2 min", "1.5 h"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 99.5:
        return f"{seconds:.0f} s" if seconds >= 1 else "<1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def listing(grid: Grid, found: Metas) -> list[str]:
    """A line a point with its estimated time, and what that time stands for."""
    made = [(point, estimate(point, found)) for point in grid.cells]
    rows = []
    for point, cost in made:
        options = " ".join(filter(None, (point.shown, point.seed and f"seed={point.seed}", point.trace and "trace")))
        what = f"{point.task}/{point.own_split}"
        n = f"n {cost.documents or '?'}"
        rows.append((Path(point.model).name, what, point.method, options, n, duration(cost.seconds)))
    rows += [("notebook", Path(point.name).stem, "", point.shown, "", "-") for point in grid.notebooks]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[f"{word:{side}{width}}" for word, side, width in zip(row, "<<<<>>", widths, strict=True)] for row in rows]
    lines = ["  ".join(row).rstrip() for row in cells]
    known = [cost.seconds for _, cost in made if cost.seconds is not None]
    kinds = sorted({found[cost.nearest]["hardware"]["kind"] for _, cost in made if cost.nearest})
    counts = f"{len(grid.cells)} cells, {len(grid.notebooks)} notebooks"
    if not known:
        return [*lines, f"{counts}; no times of these models are recorded"]
    text = f"{counts}; about {duration(sum(known))} of decoding by one process on {', '.join(kinds)}"
    if len(known) < len(made):
        text += f", without the {len(made) - len(known)} cells that have no recorded time"
    return [*lines, f"{text} (as it was recorded; another machine or batch takes another time)"]
