"""Running a grid: its cells by one or several processes, then its notebooks; resumable at any point."""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from jot.errors import UserError
from jot.runs import distributed
from jot.runs.grid import NotebookPoint, Point

COLUMNS = (
    "cell", "model", "task", "split", "method", "settings", "seed", "n", "score", "speedup", "decoded", "seconds",
    "error", "notebook",
)  # fmt: skip
Say = Callable[[str], None]


@lru_cache(maxsize=8)
def _model(name: str, device: str | None, dtype: str | None):
    from jot.models import load

    return load(name, device=device, dtype=dtype)


def decode(point: Point, store: Path, *, device: str | None, slots: int) -> dict:
    """Decode what the store lacks of one cell; a row of the summary, whatever happens.

    An error ends this cell alone: it is named in the row's ``error``.
    """
    from jot.runs.harness import evaluate

    row = dict.fromkeys(COLUMNS, "") | {
        "model": point.model, "task": point.task, "split": point.own_split, "method": point.method, "seed": point.seed,
        "settings": point.shown,
    }  # fmt: skip
    begun = time.perf_counter()
    try:
        model = _model(point.model, device, point.dtype)
        summary = evaluate(
            model, point.task, point.method, split=point.own_split, limit=point.limit, store=store / point.store,
            seed=point.seed, slots=slots, trace=point.trace, allow_code_execution=point.allow_code_execution,
            progress=False, **dict(point.settings),
        )  # fmt: skip
        row |= {"cell": summary.cell, "n": summary.n, "score": summary.score, "speedup": summary.speedup,
                "decoded": summary.decoded}  # fmt: skip
    except UserError as error:
        row["error"] = str(error)
    except Exception as error:  # one cell that breaks must not end the others
        row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return row | {"seconds": round(time.perf_counter() - begun, 1)}


def executed(path: Path) -> bool:
    """Whether a notebook's run got to its end: plain papermill writes the file cell by cell."""
    try:
        mark = json.loads(path.read_text(encoding="utf-8"))["metadata"]["papermill"]
        return bool(mark["end_time"]) and not mark["exception"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def execute(point: NotebookPoint, store: Path, cells: Iterable[str] = ()) -> dict:
    """Execute a notebook unless it has been; a row of the summary, whatever happens.

    Args:
        cells: ids of the cells that the grid decodes; a notebook older than their records, or than the packed records
            that it reads, is executed again.
    """
    from jot.runs import notebooks

    out = point.out(store)
    row = dict.fromkeys(COLUMNS, "") | {
        "notebook": str(out), "settings": point.shown, "decoded": 0,
    }  # fmt: skip
    begun = time.perf_counter()
    try:
        ids = set(cells)
        records = [path for path in store.rglob("*.jsonl") if path.name.split(".")[0] in ids]
        newest = max((path.stat().st_mtime for path in (*records, *point.reads(store))), default=0)
        if not executed(out) or out.stat().st_mtime < newest:
            notebooks.run(point.name, point.params(store), out)
            row["decoded"] = 1
    except UserError as error:
        row["error"] = str(error)
    except Exception as error:  # one notebook that breaks must not end the others
        row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return row | {"seconds": round(time.perf_counter() - begun, 1)}


def _end_with_parent() -> None:
    """Ends this process as soon as the one that started it is gone, killed or not."""
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work(pipe: Connection, store: Path, device: str | None, slots: int, threads: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and its end is ours
    torch.set_num_threads(threads)
    if str(device).startswith("cuda:"):
        torch.cuda.set_device(device)
    pipe.send(None)
    while (point := pipe.recv()) is not None:
        pipe.send(decode(point, store, device=device, slots=slots))


def _line(row: dict, done: int, total: int) -> str:
    name = row["cell"] or row["notebook"] or f"{row['model']} {row['task']} {row['method']} {row['settings']}".strip()
    if row["error"]:
        return f"[{done}/{total}] {name}: failed: {row['error']}"
    if row["notebook"]:
        return f"[{done}/{total}] {name}: " + (f"{row['seconds']:.0f} s" if row["decoded"] else "was there")
    return (
        f"[{done}/{total}] {name}: n {row['n']}, score {row['score']:.3f}, speedup {row['speedup']:.2f}, "
        f"{row['decoded']} decoded in {row['seconds']:.0f} s"
    )


def run(
    points: Sequence[Point],
    store: str | os.PathLike,
    *,
    notebooks: Sequence[NotebookPoint] = (),
    workers: int = 1,
    device: str | None = None,
    slots: int = 16,
    seconds: float | None = None,
    say: Say = print,
) -> list[dict]:
    """Decode the cells of a grid into a store, in order, then run its notebooks; ``summary.csv`` gets a row a point.

    Args:
        notebooks: executed after the cells, one after another, into the store's folder ``notebooks``.
        workers: processes; each takes the next cell when it is free, and GPU number (worker modulo GPUs).
        seconds: begin no further point after so long; the rest is left for another run.

    Returns:
        The rows of the points that were run; a failed one has an ``error``.
    """
    store = Path(store)
    rows: list[dict] = []
    total = len(points) + len(notebooks)
    begun = time.perf_counter()

    def more() -> bool:
        return seconds is None or time.perf_counter() - begun < seconds

    def keep(row: dict) -> None:
        rows.append(row)
        if distributed.first():
            say(_line(row, len(rows), total))
            summarize(store, rows)

    if workers == 1:
        for point in points:
            if not more():
                break
            keep(decode(point, store, device=device, slots=slots))
    else:
        _spread(points, store, keep, more, workers, device, slots)
    cells = [row["cell"] for row in rows]
    for notebook in notebooks if distributed.first() else ():
        if not more():
            break
        keep(execute(notebook, store, cells))
    return rows


def _spread(
    points: Sequence[Point],
    store: Path,
    keep: Callable[[dict], None],
    more: Callable[[], bool],
    workers: int,
    device: str | None,
    slots: int,
) -> None:
    """Hand the cells to ``workers`` processes; one that dies costs the cell that it was at, until the next run, and
    another takes its place.
    """
    queue = deque(points)
    gpus = torch.cuda.device_count() if device in (None, "cuda") else 0
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    pipes: dict[Connection, tuple[multiprocessing.process.BaseProcess, str | None]] = {}
    given: dict[Connection, Point] = {}

    def start(place: str | None) -> None:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, store, place, slots, threads), daemon=True)
        process.start()
        there.close()
        pipes[here] = process, place

    def lose(point: Point, why: str) -> None:
        keep(dict.fromkeys(COLUMNS, "") | {"model": point.model, "task": point.task, "method": point.method,
             "seconds": 0, "error": why})  # fmt: skip

    for i in range(workers):
        start(f"cuda:{i % gpus}" if gpus else device)
    while pipes:
        for pipe in wait(list(pipes)):
            try:
                row = pipe.recv()
            except (EOFError, OSError):  # killed, or out of memory: its cell can be resumed
                process, place = pipes.pop(pipe)
                process.join()
                if pipe in given:
                    lose(given.pop(pipe), "its process ended; run again to resume")
                    if queue and more():  # another in its place; each costs a cell, so this ends
                        start(place)
                continue
            if row is not None:
                keep(row)
                given.pop(pipe)
            point = queue.popleft() if queue and more() else None
            if point is not None:
                given[pipe] = point
            with contextlib.suppress(OSError):  # it died meanwhile: its end of the pipe says so next
                pipe.send(point)
            if point is None:
                pipes.pop(pipe)[0].join()
    while queue and more():
        lose(queue.popleft(), "no process could begin it; run again with --workers 1 to see why")


def summarize(store: Path, rows: Sequence[dict]) -> None:
    """Write ``summary.csv``, whole or not at all."""
    store.mkdir(parents=True, exist_ok=True)
    temporary = store / f".summary.{os.getpid()}.tmp"
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, store / "summary.csv")
