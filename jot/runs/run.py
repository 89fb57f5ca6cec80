"""Running a grid: its cells by one or several processes, then its notebooks; resumable at any point."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from itertools import takewhile
from multiprocessing.connection import Connection
from pathlib import Path

import pandas as pd
import torch

from jot.errors import UserError
from jot.records.store import replace
from jot.runs import distributed
from jot.runs.grid import NotebookPoint, Point
from jot.runs.parameters import resolved

COLUMNS = (
    "cell", "model", "task", "split", "method", "settings", "seed", "n", "score", "speedup", "decoded", "seconds",
    "error", "notebook",
)  # fmt: skip


@lru_cache(maxsize=8)
def _model(name: str, device: str | None, dtype: str | None):
    from jot.models import load

    return load(name, device=device, dtype=dtype)


def _row(point: Point) -> dict:
    """What is known of a cell's row in the summary before it runs."""
    named = {name: getattr(point, name) for name in ("model", "task", "method", "seed")}
    return dict.fromkeys(COLUMNS, "") | named | {"split": point.own_split, "settings": point.shown}


@contextlib.contextmanager
def _attempt(row: dict) -> Iterator[None]:
    """What ends this point alone stands in its row; and how long it took."""
    begun = time.perf_counter()
    try:
        yield
    except UserError as error:
        row["error"] = str(error)
    except Exception as error:  # one point that breaks must not end the others
        row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    row["seconds"] = round(time.perf_counter() - begun, 1)


def decode(point: Point, store: Path, *, device: str | None, slots: int, data: str | os.PathLike | None = None) -> dict:
    """Decode what the store lacks of one cell; a row of the summary, whatever happens."""
    row = _row(point)
    with _attempt(row):
        from jot.runs.harness import evaluate

        summary = evaluate(
            _model(point.model, device, point.dtype), point.task, point.method, split=point.own_split,
            limit=point.limit, store=store / point.store, seed=point.seed, slots=slots, data=data, trace=point.trace,
            allow_code_execution=point.allow_code_execution, progress=False, **point.params,
        )  # fmt: skip
        row |= {name: getattr(summary, name) for name in ("cell", "n", "score", "speedup", "decoded")}
    return row


def executed(path: Path) -> bool:
    """Whether a notebook's run got to its end: plain papermill writes the file cell by cell."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["metadata"]
        ended = found["papermill"]["end_time"] and found["language_info"]["version"]  # that, a living kernel tells
        return bool(ended) and not found["papermill"]["exception"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def execute(point: NotebookPoint, store: Path, cells: Iterable[str] = ()) -> dict:
    """Execute a notebook unless it has been since the records of ``cells`` (ids, decoded by its grid) and the packed
    records that it reads were made; a row of the summary, whatever happens."""
    out, ids = point.out(store), set(cells)
    row = dict.fromkeys(COLUMNS, "") | {"notebook": str(out), "settings": point.shown, "decoded": 0}
    with _attempt(row):
        from jot.runs import notebooks

        records = [path for path in store.rglob("*.jsonl") if path.name.split(".")[0] in ids]
        newest = max((path.stat().st_mtime for path in (*records, *point.reads(store))), default=0)
        if not executed(out) or out.stat().st_mtime < newest:
            notebooks.run(point.name, point.params(store), out)
            row["decoded"] = 1
    return row


def _begin(command: Connection, device: str | None, threads: int) -> None:
    """The start of a worker, which ends as soon as its command has closed the other end, or is gone: killed or not."""

    def end() -> None:
        command.poll(None)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is interrupted too, and its end is ours
    torch.set_num_threads(threads)
    if str(device).startswith("cuda:"):
        torch.cuda.set_device(device)


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
    points: Sequence[Point], store: str | os.PathLike, *, notebooks: Sequence[NotebookPoint] = (), workers: int = 1,
    device: str | None = None, slots: int = 16, data: str | os.PathLike | None = None, seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> list[dict]:  # fmt: skip
    """Decode the cells of a grid into a store, in order, then run its notebooks; ``summary.csv`` gets a row a point.

    Args:
        workers: processes; each takes the next cell when it is free, and GPU number (worker modulo GPUs).
        data: local folder of the benchmarks' files.
        seconds: begin no further point after so long; the rest is left for another run.

    Returns:
        The rows of the points that were run; a failed one has an ``error``.
    """
    store = Path(store)
    for notebook in notebooks:  # a place that cannot be written to is refused before the cells
        resolved(notebook.params(store))
    rows: list[dict] = []
    total, lock = len(points) + len(notebooks), threading.Lock()
    begun = time.perf_counter()

    def more(_: object) -> bool:
        return seconds is None or time.perf_counter() - begun < seconds

    def keep(row: dict) -> None:
        with lock:
            rows.append(row)
            if distributed.first():
                say(_line(row, len(rows), total))
                summarize(store, rows)

    if workers == 1:
        for point in takewhile(more, points):
            keep(decode(point, store, device=device, slots=slots, data=data))
    else:
        _spread(points, keep, more, workers, device, store=store, slots=slots, data=data)
    cells = [row["cell"] for row in rows]
    for notebook in takewhile(more, notebooks if distributed.first() else ()):
        keep(execute(notebook, store, cells))
    return rows


def _spread(
    points: Sequence[Point], keep: Callable[[dict], None], more: Callable[[object], bool], workers: int,
    device: str | None, **how: object,
) -> None:  # fmt: skip
    """Hand the cells to ``workers`` executors of one process each; a process that dies costs the cell that it was at,
    until the next run, and another takes its place."""
    gpus = torch.cuda.device_count() if device in (None, "cuda") else 0
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    left = iter(points)

    def work(number: int) -> None:
        place, pool = f"cuda:{number % gpus}" if gpus else device, None
        for point in takewhile(more, left):
            pool = pool or ProcessPoolExecutor(1, context, _begin, (theirs, place, threads))
            try:
                row = pool.submit(decode, point, device=place, **how).result()
            except BrokenProcessPool:  # killed, or out of memory: its cell can be resumed
                error = "its process ended; run again to resume, with --workers 1 to see why"
                row, pool = _row(point) | {"seconds": 0, "error": error}, None
            if not ours.closed:
                keep(row)

    with ThreadPoolExecutor(workers) as pool:
        try:
            list(pool.map(work, range(workers)))
        finally:
            list(left)  # interrupted: nothing more is begun, and the processes end
            ours.close()


def summarize(store: Path, rows: Sequence[dict]) -> None:
    """Write ``summary.csv``, whole or not at all."""
    store.mkdir(parents=True, exist_ok=True)
    replace(store / "summary.csv", pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False, na_rep="nan"))
