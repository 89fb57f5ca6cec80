"""Running a grid: its cells decoded one after another or by several processes, resumable at any point."""

from __future__ import annotations

import csv
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from jot.errors import UserError
from jot.grid import Point

COLUMNS = (
    "cell", "model", "task", "split", "method", "settings", "seed", "n", "score", "speedup", "decoded", "seconds",
    "error",
)  # fmt: skip
Say = Callable[[str], None]


@lru_cache(maxsize=8)
def _model(name: str, device: str | None, dtype: str):
    from jot.models import load

    return load(name, device=device, dtype=dtype)


def decode(point: Point, store: Path, *, device: str | None, slots: int, dtype: str = "float32") -> dict:
    """Decode what the store lacks of one cell; a row of the summary, whatever happens.

    An error ends this cell alone: it is named in the row's ``error``.
    """
    from jot.harness import evaluate

    row = dict.fromkeys(COLUMNS, "") | {
        "model": point.model, "task": point.task, "split": point.own_split, "method": point.method, "seed": point.seed,
        "settings": " ".join(f"{k}={v}" for k, v in point.settings),
    }  # fmt: skip
    begun = time.perf_counter()
    try:
        model = _model(point.model, device, dtype)
        summary = evaluate(
            model, point.task, point.method, split=point.own_split, limit=point.limit, store=store / point.store,
            seed=point.seed, slots=slots, trace=point.trace, progress=False, **dict(point.settings),
        )  # fmt: skip
        row |= {"cell": summary.cell, "n": summary.n, "score": summary.score, "speedup": summary.speedup,
                "decoded": summary.decoded}  # fmt: skip
    except UserError as error:
        row["error"] = str(error)
    except Exception as error:  # one cell that breaks must not end the others
        row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return row | {"seconds": round(time.perf_counter() - begun, 1)}


def _work(pipe: Connection, store: Path, device: str | None, slots: int, dtype: str, threads: int) -> None:
    torch.set_num_threads(threads)
    pipe.send(None)
    while (point := pipe.recv()) is not None:
        pipe.send(decode(point, store, device=device, slots=slots, dtype=dtype))


def _line(row: dict, done: int, total: int) -> str:
    name = row["cell"] or f"{row['model']} {row['task']} {row['method']} {row['settings']}".strip()
    if row["error"]:
        return f"[{done}/{total}] {name}: failed: {row['error']}"
    return (
        f"[{done}/{total}] {name}: n {row['n']}, score {row['score']:.3f}, speedup {row['speedup']:.2f}, "
        f"{row['decoded']} decoded in {row['seconds']:.0f} s"
    )


def run(
    points: Sequence[Point],
    store: str | os.PathLike,
    *,
    workers: int = 1,
    device: str | None = None,
    slots: int = 16,
    dtype: str = "float32",
    seconds: float | None = None,
    say: Say = print,
) -> list[dict]:
    """Decode the cells of a grid into a store, in order; ``summary.csv`` there gets a row a cell.

    Args:
        workers: processes; each takes the next cell when it is free, and GPU number (worker modulo GPUs).
        seconds: give out no further cell after so long; the rest is left for another run.

    Returns:
        The rows of the cells that were run; a failed one has an ``error``.
    """
    store = Path(store)
    rows: list[dict] = []
    begun = time.perf_counter()

    def more() -> bool:
        return seconds is None or time.perf_counter() - begun < seconds

    def keep(row: dict) -> None:
        rows.append(row)
        say(_line(row, len(rows), len(points)))
        summarize(store, rows)

    queue = iter(points)
    if workers == 1:
        for point in queue:
            if not more():
                break
            keep(decode(point, store, device=device, slots=slots, dtype=dtype))
        return rows
    gpus = torch.cuda.device_count() if device in (None, "cuda") else 0
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    pipes: dict[Connection, multiprocessing.process.BaseProcess] = {}
    for i in range(workers):
        here, there = context.Pipe()
        place = f"cuda:{i % gpus}" if gpus else device
        process = context.Process(target=_work, args=(there, store, place, slots, dtype, threads), daemon=True)
        process.start()
        there.close()
        pipes[here] = process
    given: dict[Connection, Point] = {}
    while pipes:
        for pipe in wait(list(pipes)):
            try:
                row = pipe.recv()
            except EOFError:  # killed, or out of memory: its cell can be resumed
                pipes.pop(pipe).join()
                if lost := given.pop(pipe, None):
                    keep(dict.fromkeys(COLUMNS, "") | {"model": lost.model, "task": lost.task, "method": lost.method,
                         "seconds": 0, "error": "its process ended; run again to resume"})  # fmt: skip
                continue
            if row is not None:
                keep(row)
                given.pop(pipe)
            point = next(queue, None) if more() else None
            pipe.send(point)
            if point is None:
                pipes.pop(pipe).join()
            else:
                given[pipe] = point
    return rows


def summarize(store: Path, rows: Sequence[dict]) -> None:
    """Write ``summary.csv``, whole or not at all."""
    store.mkdir(parents=True, exist_ok=True)
    temporary = store / f".summary.{os.getpid()}.tmp"
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, store / "summary.csv")
